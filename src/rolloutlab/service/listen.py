"""Where the service is reached: over http on this machine alone, anywhere else over https."""

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from rolloutlab.api.http.urls import canonical_resource
from rolloutlab.errors import InputError

_ALL = {"0.0.0.0", "::", "0"}
PLAIN_HOSTS = ("127.0.0.1", "localhost", "::1")
"""Hosts of this machine under which it is served without a certificate, and which it answers to."""


@dataclass(frozen=True)
class ListenAddress:
    """host: a name or an IP address, as it is in the addresses of the service. certificate, key: PEM files.

    Raises:
        InputError: nobody could ask there, the host is reached from elsewhere and has no certificate, or the files are
            none that go together.
    """

    host: str = "127.0.0.1"
    certificate: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if self._is_none():
            hint = self._typed(socket.gethostname())
            raise InputError(f"{self.host!r} is no host that anybody could ask", hint=hint)
        if (self.certificate is None) != (self.key is None):
            raise InputError("--tls-cert and --tls-key go together", hint=self._typed(self.host))
        if self.certificate is None and self.host not in PLAIN_HOSTS:
            said = f"{self.host} is reached from other machines, and what is said would be read on the way"
            raise InputError(said, hint=self._typed(self.host))
        self._check_files()

    def url(self, port: int) -> str:
        """The origin of the service, as browsers write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return canonical_resource(f"{'https' if self.certificate else 'http'}://{host}:{port}")

    def listen(self, port: int) -> socket.socket:
        """Listens; port 0 takes a free one. InputError: the host is not of this machine, or the port is taken."""
        try:
            family, _, _, _, (address, *_) = socket.getaddrinfo(self.host, None, type=socket.SOCK_STREAM)[0]
            socket.create_server((address, 0), family=family).close()
        except (OSError, UnicodeError) as error:
            hint = self._typed(socket.gethostname())
            raise InputError(f"{self.host} is no host of this machine: {error}", hint=hint) from error
        try:
            return socket.create_server((address, port), family=family)
        except (OSError, OverflowError) as error:
            raise InputError(f"port {port} cannot be used: {error}", hint=self._typed(self.host)) from error

    def _typed(self, host: str) -> str:
        """The command that serves at a host, with these files."""
        local = self.certificate is None and self.key is None and host in PLAIN_HOSTS
        files = "" if local else f" --tls-cert {self.certificate or 'cert.pem'} --tls-key {self.key or 'key.pem'}"
        return f"rolloutlab serve --host {host}{files}"

    def _is_none(self) -> bool:
        """Whether it is no host, or stands for all that a machine has, which no address of a service can name."""
        try:
            return urlsplit(self.url(1)).hostname != self.host or self.host in _ALL
        except InputError:
            return True

    def _check_files(self) -> None:
        if self.certificate is None or self.key is None:
            return
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, password=lambda: "")  # nobody is there to be asked
        except OSError as error:
            said = f"{self.certificate} and {self.key} are no certificate and its key without a passphrase: {error}"
            raise InputError(said, hint=f"openssl x509 -noout -subject -dates -in {self.certificate}") from error
