"""Tables of pictures that are none. Beside each lie `pictures`, a folder of some, and `loop`, a link to itself."""

GOOD = "path,label\n" + "".join(
    f"pictures/{part}/{name}/{i}.png,{name}\n"
    for part in ("train", "test")
    for name in ("red", "green", "blue")
    for i in range(4)
)
TABLES = {
    "a path with NUL": GOOD + "a\0b.png,red\n",
    "a path that is too long": GOOD + "a" * 5000 + ".png,red\n",
    "a link to itself": GOOD + "loop,red\n",
    "a folder for a picture": GOOD + "pictures,red\n",
    "a picture that is not there": GOOD + "none.png,red\n",
    "not UTF-8": GOOD.encode() + b"\xff.png,red\n",
    "a field of 200,000 letters": GOOD + "a" * 200_000 + ",red\n",
    "a quote that stays open": GOOD + '"abc',
    "a row too short": GOOD + "pictures/train/red/5.png\n",
    "no column path": "file,label\na.png,red\n",
    "empty": "",
}
