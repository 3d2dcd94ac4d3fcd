"""The module `location`: where a user has said to be, in the conversation that it was said in."""
