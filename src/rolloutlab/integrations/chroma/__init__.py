"""Search in Chroma: a server as a backend of the lab's engine; Chroma Cloud executes whole searches."""

from rolloutlab.integrations.chroma.api import Chroma, ServedCollection
from rolloutlab.integrations.chroma.cloud import ChromaCloud
from rolloutlab.integrations.chroma.connect import connect_search
from rolloutlab.integrations.chroma.server import ChromaServer

__all__ = ["Chroma", "ChromaCloud", "ChromaServer", "ServedCollection", "connect_search"]
