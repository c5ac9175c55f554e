"""The lab's memory on disk: everything ever sampled, every reward given, every job submitted."""
