/* The collection protocol (P1-P17) for one instalment, as Spin checks it.

   One instalment with NA attempts, two workers that derive the same request, a provider that executes
   late and lists late, webhooks (twice, late, in any order, or lost), a person, a chargeback, a payment
   by hand. Rail, exactly one: KEYED (keys that replay, and expire), CONFLICT (a key refuses a second
   create), KEYLESS, PREP (an object that collects once).

   Rules; each is a macro and can be left out (table.toml says which run must hold and which must break):
   LEASE    P1   a claim under the same request id is taken over only when its lease has run out
   TOKEN    P4   the permit asks for the claim token and a living lease
   ONESHOT  P4   recorded -> sending once; a further permit is a compare-and-set on the sendings Decide saw
   DEADLINE P5   nothing is sent after the permit's end
   AGE      P12  Resend is decided only inside the key's life
   AGEPERM  P4   the permit asks for the key's age again, by the database clock
   STORED   P6   a resend confirms the recorded object, never a new one
   RAILRS   P12  no Resend on a rail without replaying keys
   VOID     P6   a decline counts only once the object that could be confirmed again is voided
   FIRST    P7   a refusal before execution counts only if it answered the only sending
   ABSENT   P13  "not found" never means "did not happen"
   OPBOUND  P17  a verdict waits for permit, in-flight bound and lag, and voids what can be voided
   ONEEFF   P15  one ledger key per movement, whoever tells it
   APPLY    P15  a late collect pays what is owed, whatever the request's state
   FOLLOW   P17  an open request is followed whatever the instalment says
   GUARDRV  P4   a refused permit for a sent request puts the row under review
   CBROW    P4   the permit asks for an open chargeback on the row
   OWED     P4   the permit asks whether the amount is still owed
   STMT     P17  statement comparison books what no open request owns (with REPRESENT: the provider presents
                 a declined payment again)

   Worlds: MANUAL adds the payment by hand. REPRESENT as above. ORDERLY: no lease and no key runs out
   while a worker is between its claim and its end, so that one can see what LEASE and AGE carry by
   themselves where later rules would hide it.  PMAX sendings under way late per request, OPN acts of
   the person, DUP deliveries of a webhook. */
#define NA 2
#ifndef PMAX
#define PMAX 2      /* sendings of one request that may be under way late at the same time */
#endif
#ifndef OPN
#define OPN 2       /* acts of the operator */
#endif
#ifndef DUP
#define DUP 2       /* deliveries of a collected webhook */
#endif
mtype = {DUE, INF, PAID, FAILED};
mtype st = DUE; byte cur = 0; byte tok = 0; bool lease = 0; bool review = 0; bool idle = 0; bool owed = 1; bool cb = 0; bool crashed = 0;
byte rq[NA]; byte snd[NA]; bool old[NA];                  /* states of a request: 0 none 1 recorded 2 sending 4 declined 5 collected */
byte mv[NA]; byte key[NA]; byte pend[NA]; byte vis[NA]; bool pdec[NA]; byte obj[NA]; byte led[NA]; byte hqc[NA]; bool hqd[NA]; byte who[NA];
bool pl[3]; byte pk[3]; bool busy[3];
#ifdef ORDERLY
#define ATREST (!busy[1] && !busy[2])
#else
#define ATREST true
#endif
#ifdef REPRESENT
#define MOVED
#else
#define MOVED assert(mv[0]+mv[1] <= 1)                     /* I1: money moved at most once */
#endif
#define MOVE(k) mv[k]++; hqc[k] = DUP; MOVED
#if defined(KEYED) || defined(CONFLICT)
#define SEEN1(k) (key[k]==1)
#define SEEN2(k) (key[k]==2)
#define DEAD(k) false
#define MARK(k,v) key[k]=v
#elif defined(PREP)
#define SEEN1(k) (obj[k]==2)
#define SEEN2(k) false
#define DEAD(k) (obj[k]==3)
#define MARK(k,v) if :: v==1 -> obj[k]=2 :: else fi
#else
#define SEEN1(k) false
#define SEEN2(k) false
#define DEAD(k) false
#define MARK(k,v) skip
#endif
inline exec(k, ans) {
  if :: SEEN1(k) -> ans = 1 :: SEEN2(k) -> ans = 2 :: DEAD(k) -> ans = 3
     :: else -> if :: true -> MARK(k,1); MOVE(k); ans = 1 :: true -> MARK(k,2); pdec[k] = 1; hqd[k] = 1; ans = 2 :: ans = 3 fi fi }
#ifdef DEADLINE
#define LIVE(me) pl[me]
#else
#define LIVE(me) true
#endif
#define NOPERMIT (!pl[1] && !pl[2])
#define SETTLED(k) (pend[k]==0 && vis[k]==mv[k])
#define FINAL (NOPERMIT && SETTLED(0) && SETTLED(1))
#ifdef FOLLOW
#define OTHEROPEN(k) (rq[1-k]==2)
#else
#define OTHEROPEN(k) false
#endif
inline collected(k, src) {                                 /* the one settle function; src 1 worker 2 hook 4 operator */
#ifdef ONEEFF
  if :: led[k]==0 -> led[k]=1;
#else
  if :: (who[k] & src)==0 -> who[k] = who[k] | src; led[k]++;
#endif
#ifdef APPLY
     owed = 0;
#else
     if :: rq[k]==4 -> skip :: else -> owed = 0 fi;
#endif
     rq[k] = 5; idle = 0;
     if :: OTHEROPEN(k) -> skip
        :: else -> if :: !owed -> st = PAID; tok = 0; lease = 0; review = 0 :: else fi fi
  :: else fi;
  assert(led[k] <= mv[k]) }                                /* I3: no credit without a movement */
inline decl(k) {
  if :: rq[k]==2 || rq[k]==1 -> rq[k] = 4; idle = 0; review = 0; tok = 0; lease = 0;
        if :: cur==k -> cur++ :: else fi;
        if :: !owed -> st = PAID :: owed && cur>=NA -> st = FAILED :: else -> st = DUE fi
  :: else fi }
inline sealdecl(k) {                                       /* decline: void first where the object could be confirmed again */
#if defined(PREP) && defined(VOID)
  if :: obj[k]==2 -> skip :: else -> obj[k] = 3; decl(k) fi
#else
  decl(k)
#endif
}
#ifdef TOKEN
#define G_TOKEN(me) (tok==me && lease)
#else
#define G_TOKEN(me) true
#endif
#ifdef CBROW
#define G_CB (!cb)
#else
#define G_CB true
#endif
#ifdef OWED
#define G_OWED owed
#else
#define G_OWED true
#endif
#ifdef ONESHOT
#define G_ONCE(k, s, rs) ((rq[k]==1 && !rs) || (rq[k]==2 && rs && snd[k]==s))
#else
#define G_ONCE(k, s, rs) ((rq[k]==1 || rq[k]==2) && snd[k]<3)
#endif
#if defined(KEYED) && defined(AGEPERM)
#define G_AGE(k, rs) (!rs || !old[k])
#else
#define G_AGE(k, rs) true
#endif
#define PERMITTED(me, k, s, rs) (st==INF && k==cur && G_AGE(k, rs) && G_TOKEN(me) && G_CB && G_OWED && G_ONCE(k, s, rs))
#ifdef LEASE
#define TAKE (!lease)
#else
#define TAKE true
#endif
#define CLAIMABLE(me) ((st==DUE && owed && !cb && cur<NA) || (st==INF && TAKE && !review && !idle && tok!=0 && (tok!=me || !lease)))
proctype W(byte me) {
  byte k; byte ans; byte s; bool rs; byte d;               /* d: 1 settle 2 send 3 resend 4 stop 5 decline */
end: do
  :: atomic { CLAIMABLE(me) -> k = cur; st = INF; tok = me; lease = 1; idle = 0; busy[me] = 1; if :: rq[k]==0 -> rq[k] = 1 :: else fi };
     if :: atomic { !crashed -> crashed = 1; goto again } :: true fi;
     atomic {                                              /* look up, decide */
       s = snd[k]; rs = 0; d = 4;
       if :: vis[0]>0 && led[0]==0 -> d = 1; collected(0, 1)
          :: vis[1]>0 && led[1]==0 -> d = 1; collected(1, 1)
          :: else -> if
             :: rq[k]==1 -> d = 2
             :: rq[k]==2 && pdec[k] && snd[k]==1 -> d = 5; sealdecl(k)
             :: rq[k]==2 && !(pdec[k] && snd[k]==1) ->
#ifndef ABSENT
                d = 5; decl(k)                              /* 'not found' read as 'did not happen' */
#else
                if
#if defined(KEYED)
#ifdef AGE
                :: !old[k] && snd[k]<2 -> d = 3; rs = 1
                :: old[k] || snd[k]>=2 -> d = 4
#else
                :: snd[k]<2 -> d = 3; rs = 1
                :: snd[k]>=2 -> d = 4
#endif
#elif defined(PREP)
                :: snd[k]<2 -> d = 3; rs = 1
                :: snd[k]>=2 -> d = 4
#else
#ifdef RAILRS
                :: d = 4
#else
                :: snd[k]<2 -> d = 3; rs = 1
                :: snd[k]>=2 -> d = 4
#endif
#endif
                fi
#endif
             :: else -> d = 1 fi fi };
     if :: d==4 -> atomic { if :: tok==me && st==INF && rq[k]==2 -> review = 1 :: else fi }; goto again
        :: d==1 || d==5 -> goto again
        :: else fi;
#ifdef PREP
     atomic { if :: obj[k]==0 -> obj[k] = 1
#ifndef STORED
                 :: obj[k]!=0 && old[k] -> obj[k] = 1        /* made again: a second object under a new key */
#endif
                 :: else fi };
#endif
     atomic {                                              /* permit */
       if :: PERMITTED(me, k, s, rs) ->
             assert(!cb); assert(owed);                    /* I9 and 'still owed' */
#ifdef REPRESENT
             assert(led[0]+led[1]==0);                     /* no permit once a collect is booked for this instalment */
#endif
             rq[k] = 2; snd[k]++; pl[me] = 1; pk[me] = k; lease = 1
          :: else ->
             if :: tok==me && st==INF && rq[k]==1 -> tok = 0; lease = 0; if :: owed -> st = DUE :: else -> st = PAID fi   /* release */
                :: tok==me && st==INF && rq[k]==2 ->
#ifdef GUARDRV
                   review = 1
#else
                   idle = 1                                 /* 'somebody moved the row; do not send' and nothing else said */
#endif
                :: else fi;
             goto again fi };
     if :: atomic { !crashed -> crashed = 1; pl[me] = 0; goto again } :: true fi;
     ans = 0;
     atomic { if :: LIVE(me) -> pl[me] = 0;
                    if :: exec(k, ans); if :: true :: ans = 0 fi      /* answered, or the answer is lost */
                       :: pend[k]<PMAX -> pend[k]++                       /* timed out, may run later */
                       :: skip fi                                       /* never arrived */
                 :: else -> pl[me] = 0 fi };
     atomic { if :: ans==1 -> collected(k, 1)
                 :: ans==2 -> sealdecl(k)
                 :: ans==3 ->
#ifdef FIRST
                    if :: rq[k]==2 && snd[k]==1 -> decl(k) :: else fi
#else
                    decl(k)
#endif
                 :: else fi };
again: atomic { busy[me] = 0; k = 0; ans = 0; s = 0; rs = 0; d = 0 }
  od }
active proctype Late() { byte a; end: do :: atomic { pend[0]>0 -> pend[0]--; if :: exec(0, a) :: skip fi; a = 0 } :: atomic { pend[1]>0 -> pend[1]--; if :: exec(1, a) :: skip fi; a = 0 } od }
active proctype Vis() { end: do :: atomic { vis[0]<mv[0] -> vis[0]++ } :: atomic { vis[1]<mv[1] -> vis[1]++ } od }
inline hookdec(k) { hqd[k] = 0; if :: rq[k]==2 && (snd[k]==1) -> sealdecl(k) :: else fi }
active proctype Hook() { end: do                            /* each twice, late, in any order, or lost */
  :: atomic { hqc[0]>0 -> hqc[0]--; if :: collected(0, 2) :: skip fi }
  :: atomic { hqc[1]>0 -> hqc[1]--; if :: collected(1, 2) :: skip fi }
  :: atomic { hqd[0] -> hookdec(0) } :: atomic { hqd[0] -> hqd[0] = 0 } :: atomic { hqd[1] -> hookdec(1) } :: atomic { hqd[1] -> hqd[1] = 0 } od }
active proctype Clock() { end: do
  :: atomic { lease && ATREST -> lease = 0; pl[1] = 0; pl[2] = 0 }      /* the database holds the permit for dead; without DEADLINE the process may still send */
#if defined(KEYED) || (defined(PREP) && !defined(STORED))
  :: atomic { snd[0]>0 && !old[0] && NOPERMIT && ATREST -> old[0] = 1 } :: atomic { snd[1]>0 && !old[1] && NOPERMIT && ATREST -> old[1] = 1 }
#endif
#ifdef KEYED
  :: atomic { old[0] && key[0]!=0 && pend[0]==0 && NOPERMIT -> key[0] = 0 } :: atomic { old[1] && key[1]!=0 && pend[1]==0 && NOPERMIT -> key[1] = 0 }
#endif
  od }
active proctype Op() { byte n; end: do
  :: atomic { n<OPN && review && st==INF && cur<NA && rq[cur]==2 -> n++;
     if :: vis[cur]>0 -> collected(cur, 4)
        :: else ->
#ifdef OPBOUND
           if :: FINAL && mv[cur]==0 -> sealdecl(cur) :: else fi
#else
           decl(cur)
#endif
     fi }
  :: atomic { n<OPN && review && st==INF -> n++; review = 0; idle = 0 } od }        /* 'ask again' */
active proctype Dispute() { end: do :: atomic { !cb && cur>=0 -> cb = 1; break } od }
#ifdef MANUAL
active proctype Manual() { end: do :: atomic { owed -> owed = 0; idle = 0;
   if :: st==INF && cur<NA && rq[cur]==2 ->
#ifdef FOLLOW
         skip
#else
         st = PAID; tok = 0; lease = 0
#endif
      :: st==INF && (cur>=NA || rq[cur]!=2) -> st = PAID; tok = 0; lease = 0
      :: else -> st = PAID fi; break } od }
#endif
#ifdef REPRESENT
active proctype Rep() { end: do :: atomic { pdec[0] && mv[0]==0 -> MARK(0,1); MOVE(0); break } od }    /* the provider presents a declined payment again */
#ifdef STMT
active proctype Stmt() { end: do :: atomic { vis[0]>0 && led[0]==0 && rq[0]==4 -> collected(0, 4) } od }                          /* statement comparison books what no open request owns */
#endif
#endif
active proctype Quiet() { end: timeout ->                  /* everything has come to rest (disputed, failed and paid rows may rest) */
  assert(st!=INF || review);                                /* I5: no limbo */
  assert(rq[0]!=2 || (st==INF && review)); assert(rq[1]!=2 || (st==INF && review));
  assert(mv[0]==led[0] || review); assert(mv[1]==led[1] || review) }               /* I2: no movement without entry or a person */
init { atomic { run W(1); run W(2) } }
