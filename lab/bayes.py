from lab2 import *
def vocab_words(model, n=600, seed=1):
    rng=np.random.default_rng(seed)
    ws=[]
    for t,i in model.tokenizer.get_vocab().items():
        w=t.lstrip("Ġ▁ ")
        if w.isalpha() and len(w)>=3 and w.islower() and len(model.tokenizer(" "+w,add_special_tokens=False).input_ids)==1: ws.append(w)
    ws=sorted(set(ws)); return [ws[i] for i in rng.choice(len(ws),min(n,len(ws)),replace=False)]
def synth(L, name, T=300, R=24, seed=0, same=None, two=.15):
    """Activations of synthetic tasks on public pictures: [T, R, coords]"""
    def f():
        rng=np.random.default_rng(seed); words=vocab_words(L.model)
        rules=[L.rules[n] for n in (same or L.same(name))]
        Q=L.queries({r.question for r in L.T[name].test})
        P=[]
        from dataclasses import replace
        for t in range(T):
            recs=rules[rng.integers(len(rules))]
            answers=sorted({r.answer for r in recs})
            k=2 if rng.random()<two else 1
            w=rng.choice(words,(len(answers),k),replace=False)
            m={a:" ".join(w[i]) for i,a in enumerate(answers)}
            for i in rng.choice(len(recs),R,replace=len(recs)<R):
                P.append(Prompt((replace(recs[i],answer=m[recs[i].answer]),),Q[rng.integers(len(Q))]))
        return acts(L.model,P).reshape(T,R,-1)
    fam="-".join(sorted({r.question for r in L.T[name].test}))[:40].replace(" ","_").replace("?","")
    return L.cached(f"synth-{fam}-{T}-{R}-{'x'.join(same) if same else ''}", f)
def posterior(S, C, v, sigma, co=None, centre=0.0, eb=True, grid=None, info=None):
    """S [T,R,d] synthetic single activations (released coords), v noised clipped mean about centre"""
    X=S-centre; T,R,d=X.shape
    nrm=np.linalg.norm(X,axis=2,keepdims=True); Xc=X*np.minimum(1,C/nrm)
    mc=Xc.mean(1); mu_=X.mean(1)           # [T,d]
    a=mc.mean(0); b=mu_.mean(0)
    A=(mc-a)/np.sqrt(T-1); B=(mu_-b)/np.sqrt(T-1)
    U,s,Vt=np.linalg.svd(A,full_matrices=False)   # A = U s Vt ; cov = V s² Vt
    y=(v-a)@Vt.T; rest=(v-a)-y@Vt
    dr=d-len(s); rr=rest@rest
    best=None
    for al in (grid or (0.,.25,.5,1.,2.)) if eb else (1.,):
        for be in ((0.,.01,.03,.1,.3,1.,3.)) if eb else (0.,):
            be=be*sigma**2
            var=al*s**2+be+sigma**2
            ll=-.5*(np.log(var)+y*y/var).sum()-.5*(dr*np.log(be+sigma**2)+rr/(be+sigma**2))
            if best is None or ll>best[0]: best=(ll,al,be)
    _,al,be=best
    var=al*s**2+be+sigma**2
    gainr=be/(be+sigma**2)
    # cross-cov unclipped/clipped in eigenbasis: B^T A V = B^T U s
    z=y/var
    out=b+al*((U*s*z).sum(1)@B) + (be/var*y)@Vt + gainr*rest
    if info is not None: info.append((al,round(be/sigma**2,2)))
    return out+centre
