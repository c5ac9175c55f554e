"""Wire format: pydantic models of the training and chat API, without behaviour.

No clock, no ids, no I/O. "The specification", here and in other modules, is the API that docs/service.md describes.
Names are those of the specification. Unknown properties are kept wherever it allows them.
"""
