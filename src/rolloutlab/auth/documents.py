"""What servers say of themselves, as they say it; whether it can be trusted is decided where it is used."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Document(BaseModel):
    """Unknown members are nobody's business."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _said(cls, document: Any) -> Any:
        """A member that is null is as one that is not there."""
        if not isinstance(document, dict):
            return document
        return {name: value for name, value in document.items() if value is not None}


class ResourceMetadata(Document):
    """A protected resource (RFC 9728, 2)."""

    resource: str
    authorization_servers: tuple[str, ...] = Field(min_length=1)
    scopes_supported: tuple[str, ...] | None = None


class ServerMetadata(Document):
    """An authorization server (RFC 8414, 2, and OpenID Connect Discovery)."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] = ()
    code_challenge_methods_supported: tuple[str, ...] | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False


class Registration(Document):
    """What a server registered (RFC 7591, 3.2.1)."""

    client_id: str = Field(min_length=1)
    client_secret: str | None = Field(None, repr=False)
    client_secret_expires_at: float = 0
    token_endpoint_auth_method: str | None = None


class TokenAnswer(Document):
    """Tokens (RFC 6749, 5.1). expires_in: seconds."""

    access_token: str = Field(min_length=1, repr=False)
    token_type: str
    expires_in: float | None = None
    refresh_token: str | None = Field(None, repr=False)
    scope: str | None = None
