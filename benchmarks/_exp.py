import sys, time, json, torch, os, logging
sys.path.insert(0, "src"); sys.path.insert(0, "benchmarks")
import lcprune
from lcprune import data, models, tune
from safetensors.torch import load_file
from torch.nn import functional as F
net, weights, files, out = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
cands=int(sys.argv[5]); seeds=[int(x) for x in sys.argv[6].split(",")]; which=sys.argv[7].split(",")
limits=[float(x) for x in sys.argv[8].split(",")]
logging.basicConfig(level=logging.WARNING)
import pathlib
m=models.build(net,num_classes=10); st={}
for f in sorted(pathlib.Path(weights).glob(f"{net}-*.safetensors"))[:files]: st|=load_file(f)
m.load_state_dict({k:v.to(m.state_dict()[k].dtype) for k,v in st.items()}); m.cuda().eval()
ds=data.load(f"cifar10:{os.path.expanduser('~/cifar10.npz')}",seed=0,val=5000)
g=lcprune.trace(m, models.example_input(net).cuda())
def acc(x): return 100*float(tune.evaluate(x,ds,"val",device="cuda")[1])
rows=[]
def note(r):
    rows.append(r); print({k:(round(v,3) if isinstance(v,float) else v) for k,v in r.items()},flush=True); json.dump(rows,open(out,"w"))
note({"net":net,"full":acc(m)})
def kl(o,t): return F.kl_div(o.log_softmax(1),t.log_softmax(1),log_target=True,reduction="batchmean")
for seed in seeds:
    batches=[(x,y) for x,y in ds.batches("train",128,limit=2000,seed=seed,device="cuda")]
    with torch.no_grad(): answers=[(x,m(x)) for x,y in batches]
    hows={"cut":dict(after="cut"),"stats":dict(after="statistics"),"repair":dict(after="repair"),
      "repair16":dict(after="repair",precision="bf16"),
      "distance":dict(after="repair",loss_fn="distance"),"kl":dict(after="repair",loss_fn=kl)}
    for limit in limits:
        for name in which:
            t=time.time()
            if name in ("naive","uniform"):
                r=lcprune.prune(g,macs=limit,method=name,data=lcprune.Evaluation(batches,images=2000),seed=seed,repair="none",progress=False); sec=time.time()-t
            else:
                E=lcprune.Evaluation(answers if name=="kl" else batches,images=2000,**hows[name])
                r=lcprune.prune(g,macs=limit,method=lcprune.LcP(lcprune.Search(pool=min(64,cands//4),iterations=cands-min(64,cands//4))),data=E,seed=seed,repair="none",progress=False); sec=time.time()-t
            samples=[(x,()) for b,_ in batches for x in b]
            row={"net":net,"seed":seed,"limit":limit,"how":name,"seconds":sec,"spent":r.seconds,"evals":r.plan.meta.get("evaluations")}
            from lcprune.repairs import mend
            for w in ("stand-ins","refit"):
                n,d=mend(m,r.plan,r.model,samples,w,images=2000,progress=False); row[w]=acc(n)
            note(row)
