"""Move modules and folders of a Python tree and rewrite every mention. usage: move.py ROOT MAP"""
import ast, pathlib, re, subprocess, sys
root = pathlib.Path(sys.argv[1]); pairs = [l.split() for l in open(sys.argv[2]) if l.strip() and not l.startswith("#")]
git = lambda *a: subprocess.run(["git", *a], cwd=root, check=True, capture_output=True, text=True).stdout
TEXT = (".py", ".md", ".toml", ".yaml", ".yml", ".sh", ".txt", ".cfg", ".json", ".service", ".lock", "")
renames = {}  # path -> path of every file
for old, new in pairs:
    o = root / old
    assert o.exists(), old
    (root / new).parent.mkdir(parents=True, exist_ok=True)
    if o.is_dir() and (root / new).is_dir():  # into an existing folder
        for f in git("ls-files", old).split():
            t = root / (new + f[len(old):]); t.parent.mkdir(parents=True, exist_ok=True); git("mv", f, str(t.relative_to(root)))
    else:
        git("mv", old, new)
mods = {}
for old, new in pairs:
    if old.endswith(".py"): mods[old[:-3].replace("/", ".")] = new[:-3].replace("/", ".")
    elif "." not in old.split("/")[-1]: mods[old.replace("/", ".")] = new.replace("/", ".")
paths = dict(pairs)
def rx(keys, tail): return re.compile(r"(?<![\w./-])(" + "|".join(sorted(map(re.escape, keys), key=len, reverse=True)) + r")" + tail)
def rxp(keys): return re.compile(r"(?<![\w-])(" + "|".join(sorted(map(re.escape, keys), key=len, reverse=True)) + r")(?![\w-])")
mod_re, path_re = rx(mods, r"(?![\w])"), rxp(paths)
# dotted names of a single word ("gpu", "benchmarks") only in import statements and -m
single = {m for m in mods if "." not in m}
dotted_re = rx([m for m in mods if m not in single], r"(?!\w)")
for f in git("ls-files").split():
    p = root / f
    if p.suffix not in TEXT or not p.is_file() or f == "requirements.lock" or f.startswith("data/curves"): continue
    try: s = p.read_text(encoding="utf-8")
    except UnicodeDecodeError: continue
    t = dotted_re.sub(lambda m: mods[m[1]], s)
    for m in single:
        t = re.sub(rf"(?m)^(\s*(?:from|import) ){m}(?=[. ])", rf"\g<1>{mods[m]}", t)
        t = re.sub(rf"(-m\"?,? \"?){m}(?=[. \"`])", rf"\g<1>{mods[m]}", t)
    t = path_re.sub(lambda m: paths[m[1]] if "/" in m[1] else m[0], t)
    for d in (k for k in paths if "/" not in k):
        t = re.sub(rf"(?<![\w/.-]){d}/(?=\w)", paths[d] + "/", t)
    # `from pkg import sub` where pkg.sub moved
    if p.suffix == ".py":
        def fix(m):
            ind, pkg, names = m[1], m[2], m[3]
            plain = [n.strip() for n in names.strip("() \n").replace("\n", " ").split(",") if n.strip()]
            moved, keep = [], []
            for n in plain:
                full = f"{pkg}.{n.split(' as ')[0]}"
                (moved if full in mods else keep).append(n)
            if not moved: return m[0]
            out = [f"{ind}from {pkg} import {', '.join(keep)}"] if keep else []
            for n in moved:
                base, _, al = n.partition(" as ")
                npk, _, nn = mods[f"{pkg}.{base}"].rpartition(".")
                al = al or (base if nn != base else "")
                out.append(f"{ind}from {npk} import {nn}" + (f" as {al}" if al and al != nn else ""))
            return "\n".join(out)
        t = re.sub(r"(?m)^([ \t]*)from ([\w.]+) import (\([^)]*\)|[^\n(]+)", fix, t)
    if t != s: p.write_text(t, encoding="utf-8")
