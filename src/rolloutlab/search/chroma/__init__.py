"""Search in Chroma: a server as a backend of the lab's engine; Chroma Cloud executes whole searches."""

from rolloutlab.search.chroma.api import Chroma, ServedCollection
from rolloutlab.search.chroma.cloud import ChromaCloud
from rolloutlab.search.chroma.connect import connect_search
from rolloutlab.search.chroma.server import ChromaServer

__all__ = ["Chroma", "ChromaCloud", "ChromaServer", "ServedCollection", "connect_search"]
