from lab import *
from dpmtv.models.hooks import patch_heads, last_token
CURVE = "digit-french,digit-phrase,color-gem,shape-spanish,presence-french,digit-dutch-noisy,color-warmth,mixed-easy-vqa,parity-words,warmth-words,parity-pair,presence-pair".split(",")
class Lab:
    def __init__(self, folder, tasks=CURVE, Q=4, n=500, n_test=60, sealed=False):
        self.model = load(folder); self.bench = load_benchmark(DATA, tasks, sealed=sealed)
        self.folder=Path(folder); (self.folder/"cache").mkdir(exist_ok=True)
        self.rules = {}
        for r in self.bench.public: self.rules.setdefault(r.task, []).append(r)
        self.Q, self.n, self.n_test = Q, n, n_test
        self.pub = self.cached("pub", self._public)
        self.heads = self.cached("heads1", self._heads)
        self.T = {t.name: t for t in self.bench.tasks}
    def cached(self, name, f):
        p = self.folder/"cache"/f"{name}.npz"
        if p.exists(): return np.load(p, allow_pickle=True)["x"][()]
        x = f(); np.savez(p, x=np.array(x, dtype=object) if isinstance(x, dict) else x); return x
    def queries(self, questions, q=None, seed=0):
        rng = np.random.default_rng(seed)
        pool = [r for r in self.bench.public if not questions or r.question in questions]
        return [pool[i].query for i in rng.choice(len(pool), q or self.Q, replace=False)]
    def demo(self, records, queries):
        P = [Prompt((r,), q) for r in records for q in queries]
        return acts(self.model, P).reshape(len(records), len(queries), -1).mean(1)
    def _public(self):
        out = {}
        for name, recs in self.rules.items():
            qs = {r.question for r in recs}
            out[name] = self.demo(recs[:40], self.queries(qs))
        return out
    def _heads(self):
        ts = [PublicTask(a.mean(0), a, self.rules[n][40:]) for n, a in self.pub.items()]
        return select_heads(self.model, ts, "every-step").heads
    def priv(self, name):
        t = self.T[name]
        return self.cached(f"priv-{name}", lambda: self.demo(t.private[:self.n], self.queries({r.question for r in t.test})))
    def same(self, name):
        qs = {r.question for r in self.T[name].test}
        return [n for n, rr in self.rules.items() if {r.question for r in rr} & qs]
    @torch.inference_mode()
    def scores(self, name, vectors, heads=None):
        """vectors [k, coords] -> k accuracies"""
        t = self.T[name]; test = t.test[:self.n_test]; model=self.model
        heads = self.heads if heads is None else heads
        if not hasattr(self, "prep"): self.prep = {}
        if name not in self.prep: self.prep[name] = model.inputs([Prompt((), r.query) for r in test])
        inp = self.prep[name]; want = [r.answer.split() for r in test]; out=[]
        for s in range(0, len(vectors), 8):
            V = np.asarray(vectors[s:s+8], np.float32); k=len(V)
            batch = {a: b.repeat(k, *[1]*(b.dim()-1)) for a, b in inp.items()}
            vals = model.by_layer(np.repeat(V, len(test), 0))
            with patch_heads(model.projections, vals, model.coordinate_masks(heads), last_token(True)):
                ids = model.model.generate(**batch, max_new_tokens=6, do_sample=False)
            ans = model.tokenizer.batch_decode(ids[:, batch["input_ids"].shape[1]:], skip_special_tokens=True)
            ok = np.array([a.split()==want[i%len(test)] for i,a in enumerate(ans)]).reshape(k, len(test))
            out.extend(ok.mean(1))
        return np.array(out)
def clip(R, C):
    nrm = np.linalg.norm(R, axis=1, keepdims=True); return R*np.minimum(1, C/nrm)
