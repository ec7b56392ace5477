// An OpenID provider on loopback for tests: the certified library's example, with groups among its users' claims.
//
// PORT: where it listens. USERS_FILE: JSON, user's id to what storage.User holds, and Groups. REDIRECT_URI and
// SIGNED_OUT_URI: of the client `web`, whose secret is `secret`.
package main

import (
	"context"
	"encoding/json"
	"log"
	"log/slog"
	"net/http"
	"os"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

type grouped struct {
	*storage.Storage
	file string
}

// Called for the user info endpoint, which has the claims of the scopes `profile` and `email` as well.
func (s grouped) SetUserinfoFromToken(ctx context.Context, info *oidc.UserInfo, tokenID, subject, origin string) error {
	if err := s.Storage.SetUserinfoFromToken(ctx, info, tokenID, subject, origin); err != nil {
		return err
	}
	text, err := os.ReadFile(s.file) // a test may change them meanwhile
	if err != nil {
		return err
	}
	people := map[string]struct{ Groups []string }{}
	if err := json.Unmarshal(text, &people); err != nil {
		return err
	}
	info.AppendClaims("groups", people[subject].Groups)
	return nil
}

// A client that may be led back after its sign-out, which the example's may not.
type returning struct{ op.Client }

func (returning) PostLogoutRedirectURIs() []string { return []string{os.Getenv("SIGNED_OUT_URI")} }

func (s grouped) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	client, err := s.Storage.GetClientByClientID(ctx, id)
	if err != nil {
		return nil, err
	}
	return returning{client}, nil
}

func main() {
	port, file := os.Getenv("PORT"), os.Getenv("USERS_FILE")
	users, err := storage.StoreFromFile(file)
	if err != nil {
		log.Fatal(err)
	}
	storage.RegisterClients(storage.WebClient("web", "secret", os.Getenv("REDIRECT_URI")))
	store := grouped{storage.NewStorage(users), file}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	router := exampleop.SetupServer("http://localhost:"+port+"/", store, logger, false)
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, router))
}
