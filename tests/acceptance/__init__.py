"""What takes too long for every change: `make acceptance`, or one topic, `make acceptance-TOPIC`. Prints its figures."""
