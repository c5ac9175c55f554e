"""Searching records that a Chroma keeps: a server finds what the lab puts together, a cloud does all of it."""

from rolloutlab.search.chroma.api import Chroma, ServedCollection
from rolloutlab.search.chroma.cloud import ChromaCloud
from rolloutlab.search.chroma.connect import connect_search
from rolloutlab.search.chroma.server import ChromaServer

__all__ = ["Chroma", "ChromaCloud", "ChromaServer", "ServedCollection", "connect_search"]
