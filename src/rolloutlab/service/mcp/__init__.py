"""The context server: the lab's memory for any client that speaks the protocol, behind the sign-in of `oauth`."""
