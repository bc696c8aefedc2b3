from lab2 import *
L = Lab(sys.argv[1]); names = sys.argv[2].split(",") if len(sys.argv)>2 else CURVE
co = L.model.layout.coordinates(L.heads); print("heads", L.heads.reshape(6,8).sum(1), co.sum(), flush=True)
D=8
for name in names:
    V = L.priv(name)[:, co]; same = L.same(name)
    P = {n: L.pub[n][:, co] for n in L.pub}
    mus = np.mean([P[n].mean(0) for n in same], 0); mug = np.mean([p.mean(0) for p in P.values()], 0)
    allp = np.concatenate(list(P.values())); samep = np.concatenate([P[n] for n in same])
    full = np.zeros((1, len(co))); full[0, co] = V.mean(0)
    print(name, "noiseless", L.scores(name, full), "norms: raw med", np.median(np.linalg.norm(V,axis=1)).round(1), "res(same)", np.median(np.linalg.norm(V-mus,axis=1)).round(1), "mean-res", np.linalg.norm(V.mean(0)-mus).round(1), "res(glob)",np.median(np.linalg.norm(V-mug,axis=1)).round(1), "pub res", np.median(np.linalg.norm(samep-mus,axis=1)).round(1), flush=True)
    for n, eps in ((50,1.),(100,.25)):
        z = noise_multiplier(eps, 1e-5); row={}
        for cn, c, pool in (("raw",0*mus,allp),("same",mus,samep),("glob",mug,allp)):
            for f in (.5,.75,1.,1.5):
                C = f*np.median(np.linalg.norm(pool-c,axis=1)); vs=[]
                for d in range(D):
                    g=np.random.default_rng(d); X=V[g.choice(len(V),n,replace=False)]-c
                    v=np.zeros(len(co)); v[co]=c+clip(X,C).mean(0)+g.normal(size=co.sum())*z*2*C/n; vs.append(v)
                row[f"{cn}{f}"]=L.scores(name,vs).mean().round(3)
        print("  ",n,eps,row,flush=True)
