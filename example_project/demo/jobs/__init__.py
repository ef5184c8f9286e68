"""Three things to do later, asked for over HTTP by a client that knows no Django."""
