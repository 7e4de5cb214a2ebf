"""Writes the matrix of docs/clients.md between its markers. Rows of clients that did not run stay as they are."""
import re

GROUPS = ["logon", "list", "data", "change", "names", "folders", "attributes", "links", "streams", "read-only", "encrypted", "server", "errors", "backup", "restart"]


def cell(rows, client, kind, group):
    """ok, the number of checks that failed, or a dash where the client offers none of them."""
    of = {check: v for (c, k, check), v in rows.items() if (c, k) == (client, kind) and check.split(".")[0] == group}
    if not of:
        return ""
    failed = [check.split(".", 1)[1] for check, v in of.items() if v[0] == "FAIL"]
    if failed:
        return "**" + ", ".join(failed) + "**"
    done = sum(v[0] == "ok" for v in of.values())
    return "–" if not done else "ok" if done == len(of) else f"ok {done}/{len(of)}"


def tables(text):
    """The three tables as they are: the matrix's rows, versions and failures by client."""
    rows, versions, failures, name = {}, {}, {}, None
    columns = []
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if line.startswith("| client | share |"):
            into, columns = rows, cells[2:]
        elif line.startswith("| client | version |"):
            into = versions
        elif line.startswith("| failure |"):
            into = failures
        elif line.startswith("| "):
            name = cells[0].split()[0] if cells[0] else name
            if into is rows:
                by_column = dict(zip(columns, cells[2:]))
                line = f"| {cells[0]} | {cells[1]} | " + " | ".join(by_column.get(g, "–") for g in GROUPS) + " |"
            into.setdefault(name, []).append(line)
    return rows, versions, failures


def write(path, order, clients, skipped, rows, reasons):
    """`order`: the names of all clients; `clients`: those that ran."""
    with open(path) as f:
        text = f.read()
    matrix, versions, failures = tables(re.search(r"<!-- matrix: begin -->\n(.*)<!-- matrix: end -->", text, flags=re.S)[1])
    for c in clients:
        matrix[c.name], versions[c.name] = [], [f"| {c.name} | {c.version} | {c.what} |"]
        failures.pop(c.name, None)
        for i, kind in enumerate(k for k in ("dir", "volume", "ca", "samba") if any(r[:2] == (c.name, k) for r in rows)):
            shown = {"dir": "directory", "volume": "volume", "ca": "volume, CA", "samba": "*Samba*"}[kind]
            cells = [cell(rows, c.name, kind, g) for g in GROUPS]
            matrix[c.name].append(f"| {c.name if i == 0 else ''} | {shown} | " + " | ".join(cells) + " |")
    for name, reason in skipped.items():
        versions.setdefault(name, [f"| {name} | | skipped: {reason} |"])
    gathered = {}
    for (client, kind, check), reason in reasons.items():
        gathered.setdefault((client, check, reason), []).append(kind)
    for (client, check, reason), kinds in sorted(gathered.items()):
        failures.setdefault(client, []).append(f"| {client} {check} | {', '.join(kinds)} | {reason} |")
    in_order = lambda table: [line for name in order for line in table.get(name, [])]
    lines = ["| client | share | " + " | ".join(GROUPS) + " |", "|---" * (len(GROUPS) + 2) + "|", *in_order(matrix)]
    lines += ["", "| client | version | what it is |", "|---|---|---|", *in_order(versions)]
    if failures:
        lines += ["", "| failure | share | whose fault, and why |", "|---|---|---|", *in_order({k: v for k, v in sorted(failures.items())})]
    text = re.sub(r"(<!-- matrix: begin -->\n).*(<!-- matrix: end -->)", lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text, flags=re.S)
    with open(path, "w") as f:
        f.write(text)
