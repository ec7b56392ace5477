"""Errors of sign-in by a provider; each message is for the person who signs in.

GpuplaneError
├── NotAllowed
│   └── SignInRefused   what the provider said does not open an account
└── Unavailable
    └── ProviderAway    the provider does not answer, or not as OpenID Connect says
"""

from access.errors import NotAllowed, Unavailable


class SignInRefused(NotAllowed):
    """The sign-in is refused. `rule`: a short stable name of the reason."""


class ProviderAway(Unavailable):
    """No sign-in by this provider at this moment."""
