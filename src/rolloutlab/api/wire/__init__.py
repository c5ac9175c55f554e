"""Wire format: pydantic models of the training and chat specification, without behaviour.

No clock, no ids, no I/O. Names are those of the specification; unknown properties are kept wherever it allows them.
"""
