"""In how large pieces a message is sent: what the gate must know of messages, without all else that they take."""

PIECE = 4 << 20  # bytes of a message that are sent at once
