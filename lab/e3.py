from bayes import *
L=Lab(sys.argv[1]); names=sys.argv[2].split(","); co=L.model.layout.coordinates(L.heads); D=8
f=1.0
print("heads", L.heads.reshape(6,8).sum(1))
for name in names:
    V=L.priv(name)[:,co]; S=synth(L,name)[:,:,co].astype(float)
    full=np.zeros((1,768)); full[0,co]=V.mean(0)
    print(name,"noiseless",L.scores(name,full),flush=True)
    P=np.concatenate(list(L.pub.values()))[:,co]
    for n,eps in ((50,1.),(100,1.),(100,.25),(250,.25)):
        z=noise_multiplier(eps,1e-5); row={}
        for f in (.5,1.):
            C=f*np.median(np.linalg.norm(P,axis=1)); R={"raw":[], "bayes":[], "eb":[], "shr":[]}; info=[]
            for d in range(D):
                g=np.random.default_rng(d); X=V[g.choice(len(V),n,replace=False)]
                sg=z*2*C/n
                v=clip(X,C).mean(0)+g.normal(size=co.sum())*sg
                shr=max(0,1-len(v)*sg**2/(v@v))
                for k,x in (("raw",v),("shr",v*shr),("bayes",posterior(S,C,v,sg,eb=False)),("eb",posterior(S,C,v,sg,info=info))):
                    w=np.zeros(768); w[co]=x; R[k].append(w)
            for k in R: row[f"{k}{f}"]=float(L.scores(name,R[k]).mean().round(3))
        print("  ",n,eps,row,info[:4],flush=True)
