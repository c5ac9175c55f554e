"""Client of a service: inference, training, and finding or starting the embedded service."""
