"""What every adapter to a real federation shares, whatever engine carries the messages.

Nodes introduce themselves (`introductions`), become clients of the selector (`admission`,
`members`), have their claimed sizes bounded (`sizes`), and what came of each round is kept
(`rounds`, `checkpoint`). Nothing here knows Flower or NVFlare.
"""
