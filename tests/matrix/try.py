import sys, time, random
from collections import Counter
from tests.matrix import cells, tools
from tests.support.database import make_template
n=int(sys.argv[1]); pat=sys.argv[2] if len(sys.argv)>2 else ""
want=[c for c in cells.cells() if pat in c.id and c.fault!="crash"]
random.Random(1).shuffle(want); want=want[:n]
with tools.own_server() as (url,home):
    tpl=make_template(url)
    with tools.tools(url,tpl) as made:
        began=time.monotonic(); bad=0
        for b in tools.batches(want):
            t0=time.monotonic()
            rs=tools.run_batch(made,b)
            print(len(b), f"{(time.monotonic()-t0):.2f}s", b[0].rail, b[0].fault, flush=True)
            for r in rs:
                if r.fault:
                    bad+=1
                    print("FAIL", r.cell.id, r.fault[:int(sys.argv[3]) if len(sys.argv)>3 else 400], flush=True)
        print(len(want), "cells", bad, "bad", f"{time.monotonic()-began:.1f}s")
