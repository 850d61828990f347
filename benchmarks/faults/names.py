"""What classes, files and folders may be called."""

NAMES = {
    "markup": "[red]x",
    "markup that ends nothing": "[/bold]",
    "an escape sequence": "a\x1b[31mb",
    "a terminal's title": "a\x1b]0;b\x07",
    "a carriage return": "a\rb",
    "C1 controls": "a\x9b\x85b",
    "an override of direction": "a\u202eb\u2066",
    "a byte that is not UTF-8": "a\udcffb",
}
