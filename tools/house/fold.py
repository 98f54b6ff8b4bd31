"""Fold modules into others and rewrite importers. usage: fold.py ROOT FILE...
lines: `A.py > B.py` (B may be new: then the first docstring is B's unless `doc B.py text`), `rename A.py old new`, `doc B.py text`"""
import ast, collections, pathlib, re, subprocess, sys
root = pathlib.Path(sys.argv[1]); folds = collections.OrderedDict(); renames = collections.defaultdict(dict); docs = {}; first = {}
for name in sys.argv[2:]:
    for l in open(name):
        l = l.strip()
        if not l or l.startswith("#"): continue
        w = l.split()
        if w[0] == "rename": renames[w[1]][w[2]] = w[3]
        elif w[0] == "doc": docs[w[1]] = " ".join(w[2:])
        else: folds.setdefault(w[2], []).append(w[0])
git = lambda *a: subprocess.run(["git", *a], cwd=root, check=True, capture_output=True, text=True).stdout
mod = lambda f: f[:-3].replace("/", ".").removesuffix(".__init__")
home = {}  # old module -> new module
ren = {}   # old module -> {name: new}
for b, parts in folds.items():
    for a in parts: home[mod(a)] = mod(b)
for f, m in renames.items(): ren[mod(f)] = m
problems = []
def offsets(src):
    o = [0]
    for line in src.splitlines(keepends=True): o.append(o[-1] + len(line.encode()))
    return o
def rename_names(src, names):
    """Rename top-level names used as Name nodes, defs, classes and `global`-free uses."""
    if not names: return src
    tree = ast.parse(src); off = offsets(src); data = src.encode(); edits = []
    def locals_of(fn):
        got = {a.arg for a in ast.walk(fn.args) if isinstance(a, ast.arg)}
        if not isinstance(fn, ast.Lambda):
            for n in ast.walk(fn):
                if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store): got.add(n.id)
        return got
    def visit(node, hidden):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            hid = hidden | (locals_of(node) & set(names))
            if not isinstance(node, ast.Lambda):
                for d in node.decorator_list: visit(d, hidden)
                if node.returns: visit(node.returns, hidden)
                for a in ast.walk(node.args):
                    if isinstance(a, ast.arg) and a.annotation: visit(a.annotation, hidden)
                for b in node.body: visit(b, hid)
            else: visit(node.body, hid)
            for d in [*node.args.defaults, *[k for k in node.args.kw_defaults if k]]: visit(d, hidden)
            return
        if isinstance(node, ast.ClassDef):
            own = {t.id for n in node.body for t in ([n.target] if isinstance(n, ast.AnnAssign) else n.targets if isinstance(n, ast.Assign) else []) if isinstance(t, ast.Name)} & set(names)
            for n in node.body:
                if own and isinstance(n, (ast.AnnAssign, ast.Assign)):
                    if isinstance(n, ast.AnnAssign): visit(n.annotation, hidden)
                    if n.value: visit(n.value, hidden)
                else: visit(n, hidden)
            for x in [*node.bases, *node.keywords, *node.decorator_list]: visit(x, hidden)
            return
        if isinstance(node, ast.Name) and node.id in names and node.id not in hidden:
            s = off[node.lineno - 1] + node.col_offset; edits.append((s, s + len(node.id.encode()), names[node.id]))
        for c in ast.iter_child_nodes(node): visit(c, hidden)
    visit(tree, frozenset())
    for n in tree.body:
        if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and n.name in names:
            s = off[n.lineno - 1]; m = re.search(rb"(def|class) " + n.name.encode() + rb"\b", data[s:]); edits.append((s + m.start() + len(m[1]) + 1, s + m.end(), names[n.name]))
    for s, e, t in sorted(set(edits), reverse=True): data = data[:s] + t.encode() + data[e:]
    return data.decode()
def top_names(tree):
    got = {}
    for n in tree.body:
        if isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)): got[n.name] = n
        elif isinstance(n, ast.Assign):
            for t in n.targets:
                for x in ast.walk(t):
                    if isinstance(x, ast.Name): got[x.id] = n
        elif isinstance(n, (ast.AnnAssign,)) and isinstance(n.target, ast.Name): got[n.target.id] = n
    return got
def segments(src):
    """(docstring, import nodes text list, [(node, text)]) : text includes comments above and the string after an assignment."""
    tree = ast.parse(src); lines = src.splitlines(); body = tree.body[:]; doc = ""
    if body and isinstance(body[0], ast.Expr) and isinstance(getattr(body[0], "value", None), ast.Constant) and isinstance(body[0].value.value, str):
        doc = body[0].value.value; start = body[0].end_lineno; body = body[1:]
    else: start = 0
    out = []; imports = []
    for n in body:
        first = min([n.lineno, *[d.lineno for d in getattr(n, "decorator_list", [])]])
        text = "\n".join(lines[start:n.end_lineno]).strip("\n"); 
        # trailing comment after the node on the same line is kept since whole lines are taken
        start = n.end_lineno
        if isinstance(n, (ast.Import, ast.ImportFrom)): imports.append((n, text))
        else: out.append((n, text))
    rest = "\n".join(lines[start:]).strip("\n")
    if rest: out.append((None, rest))
    return doc, imports, out
src = {f: (root / f).read_text(encoding="utf-8") for f in git("ls-files", "*.py").split()}
# 0. what a folded package re-exports is imported from where it is
reexport = {}
for b, parts in folds.items():
    for a in parts:
        if a.endswith("__init__.py"):
            for n in ast.parse(src[a]).body:
                if isinstance(n, ast.ImportFrom):
                    for al in n.names: reexport[(mod(a), al.asname or al.name)] = n.module
pk = {m for m, _ in reexport}
for f in list(src):
    if not any(m in src[f] for m in pk) or f.endswith("__init__.py") and mod(f) in pk: continue
    tree = ast.parse(src[f]); off = offsets(src[f]); data = src[f].encode(); reps = []
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and n.module in pk:
            by = collections.OrderedDict()
            for al in n.names: by.setdefault(reexport.get((n.module, al.name), n.module), []).append(al.name + (f" as {al.asname}" if al.asname else ""))
            ind = " " * n.col_offset
            reps.append((off[n.lineno - 1] + n.col_offset, off[n.end_lineno - 1] + n.end_col_offset, ("\n" + ind).join(f"from {k} import ({', '.join(v)})" if len(v) > 1 else f"from {k} import {v[0]}" for k, v in by.items())))
    for a_, e_, t_ in sorted(reps, reverse=True): data = data[:a_] + t_.encode() + data[e_:]
    src[f] = data.decode()
# 1. renames inside their own files
for f, m in renames.items(): src[f] = rename_names(src[f], m)
# 1b. importers of renamed names
for f in list(src):
    s_ = src[f]
    if not any(m in s_ for m in ren): 
        if not any(m.rpartition(".")[2] in s_ for m in ren): continue
    tree = ast.parse(s_); off = offsets(s_); data = s_.encode(); reps = []; local = {}; by_alias = {}
    for n in ast.walk(tree):
        if not isinstance(n, ast.ImportFrom): continue
        for al in n.names:
            if f"{n.module}.{al.name}" in ren: by_alias[al.asname or al.name] = ren[f"{n.module}.{al.name}"]
        m = ren.get(n.module, {})
        if any(al.name in m for al in n.names):
            names = [m.get(al.name, al.name) + (f" as {al.asname}" if al.asname and al.asname != m.get(al.name) else "") for al in n.names]
            for al in n.names:
                if al.name in m and (al.asname is None or al.asname == m[al.name]): local[al.name] = m[al.name]
            reps.append((off[n.lineno - 1] + n.col_offset, off[n.end_lineno - 1] + n.end_col_offset, f"from {n.module} import ({', '.join(names)})"))
    for n in ast.walk(tree):
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.attr in by_alias.get(n.value.id, {}):
            e0 = off[n.end_lineno - 1] + n.end_col_offset; reps.append((e0 - len(n.attr.encode()), e0, by_alias[n.value.id][n.attr]))
    for a_, e_, t_ in sorted(set(reps), reverse=True): data = data[:a_] + t_.encode() + data[e_:]
    src[f] = rename_names(data.decode(), local)
old_ren, ren = ren, {}
# re-exports: packages whose __init__ imports renamed names are handled by the caller (rename lines for the __init__ too)
def unqualify(text, f, aliases):
    """alias.name -> name, for modules that come into the same file."""
    tree = ast.parse(text); off = offsets(text); data = text.encode(); edits = []
    stores = collections.Counter(n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    for n in ast.walk(tree):
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in aliases:
            s0 = off[n.lineno - 1] + n.col_offset; e0 = off[n.end_lineno - 1] + n.end_col_offset
            m = aliases[n.value.id]; edits.append((s0, e0, ren.get(m, {}).get(n.attr, n.attr)))
            if stores[n.attr] : problems.append(f"{f}: local name `{n.attr}` hides {m}.{n.attr}")
    for a in aliases:
        if stores[a] or any(isinstance(n, ast.arg) and n.arg == a for n in ast.walk(tree)): problems.append(f"{f}: local `{a}` hides the module")
    for a, e, t in sorted(set(edits), reverse=True): data = data[:a] + t.encode() + data[e:]
    return data.decode()
# 2. merge
gone = []; title = {}
for b, parts in folds.items():
    group = list(dict.fromkeys(([b] if b in src else []) + parts)); inside = {mod(f) for f in group}
    for f in group:
        aliases = {}
        for n in ast.walk(ast.parse(src[f])):
            if isinstance(n, ast.ImportFrom):
                for al in n.names:
                    if f"{n.module}.{al.name}" in inside: aliases[al.asname or al.name] = f"{n.module}.{al.name}"
        if aliases: src[f] = unqualify(src[f], f, aliases)
for b, parts in folds.items():
    group = ([b] if b in src else []) + parts
    group = list(dict.fromkeys(group)); mods_in = {mod(f): f for f in group}
    deps = {f: set() for f in group}
    for f in group:
        for n in ast.parse(src[f]).body:
            if isinstance(n, ast.ImportFrom):
                if n.module in mods_in: deps[f].add(mods_in[n.module])
                for al in n.names:
                    if f"{n.module}.{al.name}" in mods_in: deps[f].add(mods_in[f"{n.module}.{al.name}"])
    order = []; state = {}
    def put(f):
        if state.get(f) == 2: return
        if state.get(f) == 1: problems.append(f"cycle at {f}"); return
        state[f] = 1
        for d in sorted(deps[f] - {f}, key=group.index): put(d)
        state[f] = 2; order.append(f)
    for f in group: put(f)
    seen = {}; imports = {}; alias = {}; chunks = []; doc_of = {}; tail = []
    for f in order:
        doc, imps, segs = segments(src[f]); doc_of[f] = doc
        if f.endswith("__init__.py") and f != b: continue
        for n, text in imps:
            if isinstance(n, ast.ImportFrom) and (n.module in mods_in):
                for al in n.names:
                    new = ren.get(n.module, {}).get(al.name, al.name)
                    if al.asname and al.asname != new: problems.append(f"{b}: {f} imports {n.module}.{al.name} as {al.asname}")
                    elif new != al.name and not al.asname: pass
                continue
            if isinstance(n, ast.ImportFrom):
                keepn = []
                for al in n.names:
                    if f"{n.module}.{al.name}" in mods_in: continue
                    keepn.append(al)
                for al in keepn:
                    key = al.asname or al.name; full = (n.module, al.name)
                    if key in imports and imports[key][:2] != full: problems.append(f"{b}: import {key} means {imports[key][:2]} and {full} ({f})")
                    imports[key] = (*full, text if "#" in text.split("import")[-1] else "")
            else:
                for al in n.names:
                    key = al.asname or al.name
                    if key in imports and imports[key][:2] != (None, al.name): problems.append(f"{b}: import {key}")
                    imports[key] = (None, al.name, "")
        body = []; skip_doc = False
        for n, text in segs:
            if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant) and isinstance(n.value.value, str):
                if not skip_doc: body.append(("doc", text))
                continue
            skip_doc = False
            names = [k for k, v in top_names(ast.Module([n], [])).items()] if n is not None else []
            if names == ["Floats"] and "Floats" in imports: continue
            clash = [k for k in names if k in seen and seen[k][0] != f]
            if clash:
                if all(seen[k][1].strip() == text.strip() for k in clash): skip_doc = True; continue
                for k in clash: problems.append(f"{b}: `{k}` in {seen[k][0]} and {f}")
            for k in names: seen[k] = (f, text)
            body.append((n, text))
        chunks.append((f, body))
    for k in list(imports):
        if k == "Floats" and k in seen: del imports[k]
    clash = set(seen) & set(imports)
    for k in clash: problems.append(f"{b}: `{k}` is defined in {seen[k][0]} and imported from {imports[k][:2]}")
    head = docs.get(b) or doc_of.get(b) or doc_of[parts[0]]
    out = [f'"""{head}"""' if not head.endswith('"') else f'"""{head} """', "", "from __future__ import annotations", ""]
    byfrom = collections.OrderedDict()
    for key, (m, name, _) in imports.items():
        if m == "__future__": continue
        if m is None: out.append(f"import {name}" + (f" as {key}" if key != name else ""))
        else: byfrom.setdefault(m, []).append(name + (f" as {key}" if key != name else ""))
    for m, names in byfrom.items(): out.append(f"from {m} import ({', '.join(names)})")
    out.append("")
    for f, body in chunks:
        if not body: continue
        if len(order) > 1 and f != b and f not in (parts[0] if b not in src and len(parts) == 1 else ()):
            line = (doc_of[f] or "").strip().splitlines()
            if line:
                import textwrap
                paras = "\n".join(line[1:]).strip().split("\n\n")
                text = []
                for para in paras:
                    if not para.strip(): continue
                    keep = any(l.startswith(" ") for l in para.splitlines())
                    text += ["#"] + ["# " + l for l in (para.splitlines() if keep else textwrap.wrap(" ".join(para.split()), 116))]
                out += ["", *[("# --- " if i == 0 else "# ") + l for i, l in enumerate(textwrap.wrap(line[0].rstrip("."), 114))], *text, ""]
        prev = None
        for n, text in body:
            if n == "doc": out.append(text); continue
            big = isinstance(n, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef))
            out += (["", ""] if big else []) + [text] + (["", ""] if big else [])
    for f in parts: gone.append(f)
    src[b] = "\n".join(out) + "\n"
# 3. importers
moved_names = {}
for f in list(src):
    if f in gone and f not in folds: continue
    s = src[f]; edits = {}
    try: tree = ast.parse(s)
    except SyntaxError as e: problems.append(f"{f}: {e}"); continue
    off = offsets(s); data = s.encode(); reps = []; local = {}
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom):
            outl = collections.OrderedDict(); changed = False
            for al in n.names:
                m, name = n.module, al.name; asn = al.asname
                full = f"{m}.{name}"
                if full in home:
                    nm, _, leaf = home[full].rpartition("."); changed = True
                    taken = {x.id for x in ast.walk(tree) if isinstance(x, ast.Name)} | {x.arg for x in ast.walk(tree) if isinstance(x, ast.arg)} | {x.name for x in ast.walk(tree) if isinstance(x, (ast.FunctionDef, ast.ClassDef))}
                    if asn is None and leaf != name and leaf in taken: asn = name
                    if asn is None and leaf != name: local[name] = leaf
                    outl.setdefault(nm, []).append(leaf + (f" as {asn}" if asn else ""))
                elif m in home or m in ren:
                    new = ren.get(m, {}).get(name, name); changed = changed or m in home or new != name
                    if new != name and asn is None: local[name] = new
                    outl.setdefault(home.get(m, m), []).append(new + (f" as {asn}" if asn and asn != new else ""))
                else: outl.setdefault(m, []).append(name + (f" as {asn}" if asn else ""))
            if changed:
                outl = {k: v for k, v in outl.items() if k != mod(f)}
                a = off[n.lineno - 1] + n.col_offset; e = off[n.end_lineno - 1] + n.end_col_offset
                ind = " " * n.col_offset
                text = ("\n" + ind).join(f"from {k} import {v[0]}" if len(v) == 1 else f"from {k} import ({', '.join(dict.fromkeys(v))})" for k, v in outl.items()) or "pass"
                reps.append((a, e, text))
        elif isinstance(n, ast.Import):
            for al in n.names:
                if al.name in home: problems.append(f"{f}: import {al.name}")
    for a, e, t in sorted(reps, reverse=True): data = data[:a] + t.encode() + data[e:]
    s2 = data.decode()
    # attributes of modules imported by name: alias.old -> alias.new
    by_alias = {}
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom):
            for al in n.names:
                full = f"{n.module}.{al.name}"
                if full in ren: by_alias[al.asname or al.name] = ren[full]
    if by_alias:
        t2 = ast.parse(s2); off2 = offsets(s2); d2 = s2.encode(); ed = []
        for n in ast.walk(t2):
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.attr in by_alias.get(n.value.id, {}):
                e0 = off2[n.end_lineno - 1] + n.end_col_offset
                ed.append((e0 - len(n.attr.encode()), e0, by_alias[n.value.id][n.attr]))
        for a, e, t in sorted(set(ed), reverse=True): d2 = d2[:a] + t.encode() + d2[e:]
        s2 = d2.decode()
    if local: s2 = rename_names(s2, {k: v for k, v in local.items() if not re.search(rf"from [\w.]+ import [^\n]*\b{v} as {k}\b", s2)}) if True else s2
    src[f] = s2
for f in gone:
    if f not in folds: src.pop(f, None)
if problems:
    print("\n".join(problems)); print(len(problems), "problems")
    if "--force" not in sys.argv: sys.exit(1)
dotted = re.compile(r"(?<![\w./-])(" + "|".join(sorted(map(re.escape, home), key=len, reverse=True)) + r")(?!\w)") if home else None
pathmap = {a: b for b, ps in folds.items() for a in ps}
for b in folds: (root / b).parent.mkdir(parents=True, exist_ok=True)
for f, s in src.items():
    (root / f).write_text(s, encoding="utf-8")
for f in gone:
    if f not in folds and (root / f).exists(): git("rm", "-q", "-f", f)
git("add", "-A")
for f in git("ls-files").split():
    p = root / f
    if p.suffix not in (".py", ".md", ".toml", ".yaml", ".sh", ".typ", "") or not p.is_file(): continue
    try: s = p.read_text(encoding="utf-8")
    except UnicodeDecodeError: continue
    put = lambda m: m[0] if home[m[1]].startswith(m[1] + ".") and m.string[m.end():m.end() + 1] == "." else home[m[1]]
    if p.suffix == ".py" and dotted and dotted.search(s):
        import io, tokenize
        off = offsets(s); data = s.encode(); reps = []
        for tok in tokenize.generate_tokens(io.StringIO(s).readline):
            if tok.type in (tokenize.STRING, tokenize.COMMENT) and not re.match(r"[rbRB]*[fF]", tok.string) and dotted.search(tok.string):
                lines = s.splitlines(keepends=True)
                a = off[tok.start[0] - 1] + len(lines[tok.start[0] - 1][:tok.start[1]].encode()); e = off[tok.end[0] - 1] + len(lines[tok.end[0] - 1][:tok.end[1]].encode())
                reps.append((a, e, dotted.sub(put, tok.string)))
        for a, e, t in sorted(reps, reverse=True): data = data[:a] + t.encode() + data[e:]
        t = data.decode()
    else: t = dotted.sub(put, s) if dotted else s
    for a, b in pathmap.items(): t = t.replace(a, b) if a in t else t
    if t != s: p.write_text(t, encoding="utf-8")
