"""Sign-in by OpenID Connect: the providers of the settings, the protocol, and accounts of people who come by it.

`providers` describes a provider; `client` speaks the protocol; `accounts` turns who the provider names into an account.
Called by `gpuplane.pages.provider_sign_in`. Invariants:
- Nothing of an ID token is read before its signature, issuer, audience, end and nonce are checked.
- The issuer and the subject name a person; a name never opens an account that another way of sign-in made.
- Role and teams of such an account are those that its groups give, from each sign-in on.
"""
