"""From a url to an outcome: the guard, the client, the signature and the secrets of callbacks."""
