"""Tables as the benchmarks print them, ready for the docs."""


def table(title, header, rows, digits=3):
    print(f"\n{title}\n")
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        cells = (str(c) if isinstance(c, (str, int)) else f"{c:.{digits}f}" for c in row)
        print("| " + " | ".join(cells) + " |", flush=True)
