"""Writes the matrix of docs/clients.md between its markers."""
import re

GROUPS = ["logon", "list", "data", "change", "names", "folders", "attributes", "links", "streams", "read-only", "encrypted", "server", "restart"]


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


def write(path, clients, skipped, rows, reasons):
    lines = ["| client | share | " + " | ".join(GROUPS) + " |", "|---" * (len(GROUPS) + 2) + "|"]
    for c in clients:
        for i, kind in enumerate(k for k in ("dir", "volume", "ca", "samba") if any(r[:2] == (c.name, k) for r in rows)):
            shown = {"dir": "directory", "volume": "volume", "ca": "volume, CA", "samba": "*Samba*"}[kind]
            cells = [cell(rows, c.name, kind, g) for g in GROUPS]
            lines.append(f"| {c.name if i == 0 else ''} | {shown} | " + " | ".join(cells) + " |")
    lines += ["", "| client | version | what it is |", "|---|---|---|"]
    lines += [f"| {c.name} | {c.version} | {c.what} |" for c in clients]
    lines += [f"| {name} | | skipped: {reason} |" for name, reason in skipped.items()]
    if reasons:
        lines += ["", "| failure | share | whose fault, and why |", "|---|---|---|"]
        gathered = {}
        for (client, kind, check), reason in reasons.items():
            gathered.setdefault((client, check, reason), []).append(kind)
        lines += [f"| {client} {check} | {', '.join(kinds)} | {reason} |" for (client, check, reason), kinds in sorted(gathered.items())]
    with open(path) as f:
        text = f.read()
    text = re.sub(r"(<!-- matrix: begin -->\n).*(<!-- matrix: end -->)", lambda m: m[1] + "\n".join(lines) + "\n" + m[2], text, flags=re.S)
    with open(path, "w") as f:
        f.write(text)
