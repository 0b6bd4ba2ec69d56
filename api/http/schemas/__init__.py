"""What requests and answers hold, one module for each kind of thing."""
