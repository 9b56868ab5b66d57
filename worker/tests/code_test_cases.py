"""Programs and tests of codeTests: honest ones, which pass as in plain Python, and forged ones, which must not.

Usage: code_test_cases.py. Both sides of a test run in this process. Prints what went wrong, and exits with 1.
"""

import io
import json
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import forge_code_tests  # noqa: E402
from check_program import FAILED, PASSED  # noqa: E402

HONEST = [
    (
        "def f(n): yield from range(n)",
        """
assert list(f(3)) == [0,1,2]
assert [*f(2)] == [0,1]
assert tuple(f(2)) == (0,1)
assert sorted(f(3), reverse=True)==[2,1,0]
a=[]
a.extend(f(2)); a += f(2)
assert a == [0,1,0,1]
assert sum(f(4)) == 6 and max(f(3)) == 2 and set(f(2)) == {0,1}
""",
    ),
    (
        "def f(n): return map(str, range(n))",
        "assert list(f(3)) == ['0','1','2']",
    ),
    (
        """
from collections import deque
def f(n): return deque(range(n))
""",
        """
assert list(f(3)) == [0,1,2]
assert f(3)[0] == 0
assert len(f(3)) == 3
""",
    ),
    (
        "def f(n): return range(n)",
        """
assert list(f(3)) == [0,1,2]
assert f(3) == range(3)
""",
    ),
    (
        "def f(n): return {i:i*i for i in range(n)}.items()",
        """
assert list(f(3)) == [(0,0),(1,1),(2,4)]
assert dict(f(2)) == {0:0,1:1}
""",
    ),
    (
        """
class Bad(Exception): pass
def f(n):
  if n < 0: raise Bad('neg')
  return n
""",
        """
try:
  f(-1)
  assert False
except Bad as e:
  assert str(e) == 'neg'
assert f(1) == 1
""",
    ),
    (
        """
class Bad(ValueError):
  def __init__(self, code, msg):
    super().__init__(msg); self.code = code
def f(n):
  if n < 0: raise Bad(3, 'neg')
  return n
""",
        """
import unittest
class T(unittest.TestCase):
  def test_a(self):
    with self.assertRaises(Bad) as c: f(-1)
    self.assertEqual(c.exception.code, 3)
    with self.assertRaises(ValueError): f(-2)
    self.assertRaises(Bad, f, -1)
    self.assertEqual(f(2), 2)
""",
    ),
    (
        """
from dataclasses import dataclass
@dataclass
class P:
  x: int
  y: int = 0
def f(n): return P(n, n+1)
""",
        """
assert f(3) == P(3,4)
assert f(3).x == 3
assert isinstance(f(1), P)
assert f(3) != P(3,3)
assert [f(1), f(2)] == [P(1,2), P(2,3)]
assert P(3,4) == f(3)
e = P(5,6)
assert f(5) == e
assert repr(f(1)) == 'P(x=1, y=2)'
assert type(f(1)) is P
assert type(f(1)).__name__ == 'P'
assert f(1) in [P(1,2)]
""",
    ),
    (
        """
from enum import Enum
class Color(Enum):
  RED=1
  BLUE=2
  def hot(self): return self is Color.RED
def f(n): return Color.RED if n else Color.BLUE
""",
        """
assert f(1) == Color.RED and f(0) is Color.BLUE
assert f(1).name == 'RED' and f(1).value == 1
assert Color(2) is f(0)
assert list(Color) == [Color.RED, Color.BLUE]
assert isinstance(f(0), Color)
assert f(1).hot() and not f(0).hot()
assert {f(1): 2} == {Color.RED: 2}
assert Color['RED'] is Color.RED
""",
    ),
    (
        """
from decimal import Decimal
def f(n): return Decimal(n)/3
""",
        """
from decimal import Decimal
assert f(1) == Decimal(1)/3
assert isinstance(f(3), Decimal)
""",
    ),
    (
        """
from fractions import Fraction
def f(n): return Fraction(1,n)
""",
        """
from fractions import Fraction
assert f(3) == Fraction(1,3)
assert f(2) + f(2) == 1
""",
    ),
    (
        """
import datetime
def f(n): return datetime.date(2020,1,n)
def g(): return datetime.datetime(2020,1,1,tzinfo=datetime.timezone.utc)
""",
        """
import datetime
assert f(3) == datetime.date(2020,1,3)
assert f(3).day==3
assert g() - g() == datetime.timedelta()
""",
    ),
    (
        """
from collections import namedtuple
P = namedtuple('P','x y')
def f(n): return P(n,1)
""",
        """
assert f(3) == (3,1)
assert f(3).x == 3
assert f(3) == P(3,1)
x, y = f(3)
assert isinstance(f(3), P)
assert f(3)._asdict() == {'x':3,'y':1}
""",
    ),
    (
        """
from typing import NamedTuple
class P(NamedTuple):
  x: int
  y: int = 2
  def norm(self): return self.x+self.y
def f(n): return P(n)
""",
        """
assert f(3) == P(3)
assert f(3).norm() == 5
assert P(1).norm() == 3
""",
    ),
    (
        """
class Shape: pass
class Sq(Shape): pass
class Ci(Shape): pass
def f(n): return Sq() if n else Ci()
""",
        """
assert isinstance(f(1), Sq) and not isinstance(f(0), Sq) and isinstance(f(0), Shape)
assert issubclass(Sq, Shape)
assert isinstance(f(1), (Ci, Sq))
""",
    ),
    (
        """
class T:
  def __init__(self): self.log=[]
  def __enter__(self): self.log.append('in'); return self
  def __exit__(self,*a): self.log.append('out')
  def get(self): return self.log
""",
        """
with T() as t:
  assert t.get() == ['in']
assert t.get() == ['in','out']
""",
    ),
    (
        """
class ListNode:
  def __init__(self, val=0, next=None): self.val=val; self.next=next
def rev(h):
  p=None
  while h: h.next, p, h = p, h, h.next
  return p
""",
        """
def build(v):
  d = ListNode(0); c = d
  for x in v:
    c.next = ListNode(x); c = c.next
  return d.next
def out(n):
  r=[]
  while n:
    r.append(n.val); n = n.next
  return r
assert out(rev(build([1,2,3]))) == [3,2,1]
assert rev(None) is None
n = rev(build([1,2]))
while n is not None: n = n.next
""",
    ),
    (
        """
class TreeNode:
  def __init__(self, val=0, left=None, right=None): self.val=val; self.left=left; self.right=right
def inv(t):
  if not t: return None
  t.left,t.right=inv(t.right),inv(t.left)
  return t
""",
        """
from collections import deque
t = TreeNode(1, TreeNode(2), TreeNode(3))
r = inv(t)
q = deque([r]); o=[]
while q:
  n = q.popleft()
  if n:
    o.append(n.val); q.append(n.left); q.append(n.right)
assert o == [1,3,2]
def same(a,b):
  if not a and not b: return True
  if not a or not b: return False
  return a.val == b.val and same(a.left,b.left) and same(a.right,b.right)
assert same(inv(TreeNode(1,TreeNode(2))), TreeNode(1,None,TreeNode(2)))
""",
    ),
    (
        "def f(n): return bytearray(b'ab')",
        """
assert f(1) == bytearray(b'ab')
assert f(1) == b'ab'
assert isinstance(f(1), bytearray)
""",
    ),
    (
        """
class V:
  def __init__(self,x,y): self.x=x; self.y=y
  def __add__(self,o): return V(self.x+o.x,self.y+o.y)
  def __mul__(self,k): return V(self.x*k,self.y*k)
  __rmul__=__mul__
  def __eq__(self,o): return isinstance(o,V) and (self.x,self.y)==(o.x,o.y)
  def __abs__(self): return (self.x**2+self.y**2)**.5
""",
        """
assert V(1,2)+V(3,4)==V(4,6)
assert abs(V(3,4)) == 5
assert (V(1,2)*2).x == 2
assert V(1,2)*2 == V(2,4)
assert 2*V(1,2) == V(2,4)
assert V(1,2) != V(2,1)
assert V(1,2) == V(1,2)
""",
    ),
    (
        """
class Stack(list):
  def push(self,x): self.append(x)
""",
        """
s = Stack()
s.push(1)
assert s.pop() == 1
s.push(2)
assert s == [2]
assert len(s) == 1 and s
""",
    ),
    (
        """
class S:
  _i=None
  def __new__(cls):
    if cls._i is None: cls._i = super().__new__(cls)
    return cls._i
""",
        """
assert S() is S()
a=S(); b=S()
assert a is b
""",
    ),
    (
        """
def f(n): raise KeyError('k')
def g(): import sys; sys.exit(2)
""",
        """
try: f(1)
except KeyError as e: assert e.args == ('k',) and str(e) == "'k'"
try: g()
except SystemExit as e: assert e.code == 2
""",
    ),
    (
        """
from collections import Counter, OrderedDict, defaultdict
def f(s): return Counter(s)
def g(): return OrderedDict(a=1,b=2)
def h():
  d=defaultdict(int); d['x']+=1
  return d
""",
        """
from collections import Counter
assert f('aab').most_common(1) == [('a',2)]
assert f('aab') == Counter('aab')
assert g() == {'a':1,'b':2}
assert list(g().items())[0]==('a',1)
assert h()['q'] == 0 and h()=={'x':1}
""",
    ),
    (
        """
import functools
@functools.total_ordering
class V:
  def __init__(self,s): self.p=tuple(map(int,s.split('.')))
  def __eq__(self,o): return self.p==o.p
  def __lt__(self,o): return self.p<o.p
  def __hash__(self): return hash(self.p)
""",
        """
assert V('1.2') < V('1.10')
assert sorted([V('2.0'),V('1.0')])[0].p == (1,0)
assert max(V('1.0'),V('3.0')).p==(3,0)
assert len({V('1.0'),V('1.0')})==1 or True
assert V('1.0') == V('1.0')
""",
    ),
    (
        """
def f(): return int
def g(): return ValueError('x')
""",
        """
assert f() is int
assert isinstance(g(), ValueError)
""",
    ),
    (
        """
class Sup:
  def __enter__(self): return self
  def __exit__(self,*a): return True
""",
        """
with Sup():
  raise ValueError('x')
assert Sup() is not None
""",
    ),
    (
        """
def mk(n):
  def add(x): return x+n
  return add
""",
        """
assert mk(2)(3)==5
assert callable(mk(1))
""",
    ),
    (
        """
class It:
  def __init__(self,n): self.n=n
  def __iter__(self): return iter(range(self.n))
  def __len__(self): return self.n
  def __contains__(self,x): return x < self.n
  def __getitem__(self,i): return i
def make(n): return It(n)
""",
        """
i = It(3)
assert list(i)==[0,1,2] and len(i)==3 and 2 in i and i[1]==1 and list(i)==[0,1,2]
assert list(make(2))==[0,1]
""",
    ),
    (
        """
import types
def f(n):
  for i in range(n): yield i
""",
        """
import types, inspect
assert isinstance(f(2), types.GeneratorType)
g=f(3)
assert next(g)==0
assert next(g)==1
assert list(g)==[2]
assert next(g,None) is None
""",
    ),
    (
        """
from collections import Counter, deque
from decimal import Decimal
def f(s): return Counter(s)
def g(): return Decimal('1.5')
""",
        """
assert f('aab') == Counter('aab')
assert g() == Decimal('1.5')
import os, sys
sys.exit(0)
""",
    ),
    (
        """
class Queue:
  def __init__(s): s.i=[]
  def add(s,x): s.i.append(x)
  def __len__(s): return len(s.i)
""",
        """
q=Queue()
q.add(2)
assert len(q)==1 and q.i==[2]
""",
    ),
    (
        """
class T:
  def __enter__(self): return self
  def __exit__(self, *a): pass
  def get(self, k): return k
""",
        """
with T() as t:
  assert t.get(3) == 3
""",
    ),
    (
        """
from contextlib import contextmanager
@contextmanager
def tag(n):
  yield '<%s>' % n
""",
        """
with tag('a') as t:
  assert t == '<a>'
""",
    ),
    (
        """
class C:
  def __init__(self): self.n = 0
  def up(self):
    self.n += 1
    return self
""",
        """
c = C()
assert c.up().up().n == 2
assert c.n == 2
""",
    ),
    (
        """
from enum import Enum
class S(Enum):
  A='a'
  B='b'
  def __str__(self): return 'S-' + self.value
class L(Enum):
  LOW=1
  HIGH=2
  def __lt__(self, o): return self.value < o.value
""",
        """
assert str(S.A) == 'S-a'
assert L.LOW < L.HIGH
assert [m.name for m in S] == ['A','B']
""",
    ),
    (
        """
from enum import IntEnum, Flag
class P(IntEnum):
  LOW=1
  HIGH=3
class F(Flag):
  R=1
  W=2
def f(): return F.R | F.W
""",
        """
assert P.HIGH == 3 and P.LOW < P.HIGH
assert f() == F.R | F.W
assert F.R in f()
""",
    ),
    (
        """
class Node:
  def __init__(self, v, next=None): self.v=v; self.next=next
class LL:
  def __init__(self): self.head=None
  def push(self,v): self.head=Node(v,self.head)
  def __iter__(self):
    n=self.head
    while n: yield n.v; n=n.next
""",
        """
l=LL()
l.push(1); l.push(2)
assert list(l)==[2,1]
assert l.head.next.v == 1 and l.head.next.next is None
cur=l.head; n=0
while cur:
  n+=1; cur=cur.next
assert n==2
""",
    ),
    (
        """
from dataclasses import dataclass, field
@dataclass(order=True, frozen=True)
class V:
  a: int
  b: list = field(default_factory=list, compare=False)
def f(n): return [V(n), V(n-1)]
""",
        """
assert sorted(f(3)) == [V(2), V(3)] if False else f(3) == [V(3), V(2)]
assert V(1) < V(2)
assert hash(V(1)) == hash(V(1))
assert {V(1), V(1)} == {V(1)}
""",
    ),
    (
        """
class Matrix:
  def __init__(self, rows): self.rows=rows; self.n=len(rows); self.m=len(rows[0])
  def __eq__(self, o): return (self.n, self.m, self.rows) == (o.n, o.m, o.rows)
  def __mul__(self, o): return Matrix([[sum(a*b for a,b in zip(r,c)) for c in zip(*o.rows)] for r in self.rows])
""",
        "assert Matrix([[1,2],[3,4]]) * Matrix([[1,0],[0,1]]) == Matrix([[1,2],[3,4]])",
    ),
    (
        """
class Money:
  def __init__(self, amount, currency='USD'): self.amount=amount; self.currency=currency
  def __eq__(self, o): return isinstance(o, Money) and self.amount==o.amount and self.currency==o.currency
  def __add__(self, o): return Money(self.amount+o.amount, self.currency)
""",
        """
assert Money(5) + Money(6) == Money(11)
assert Money(5) != Money(5, 'EUR')
assert Money(1) == Money(1)
""",
    ),
    (
        """
from fractions import Fraction as _F
class Frac:
  def __init__(self, a, b): f=_F(a,b); self.a=f.numerator; self.b=f.denominator
  def __eq__(self, o): return (self.a,self.b)==(o.a,o.b)
  def __add__(self, o): return Frac(self.a*o.b+o.a*self.b, self.b*o.b)
""",
        """
assert Frac(1,2)+Frac(1,3) == Frac(5,6)
assert Frac(1,2) == Frac(2,4)
""",
    ),
    (
        """
def f(d):
  d.append(4); return None
def g(s): s.extend(b'x')
def h(items): items.sort()
""",
        """
from collections import deque
d=deque([1]); f(d)
assert d == deque([1,4])
b=bytearray(b'a'); g(b)
assert b == b'ax'
x=[2,1]; h(items=x)
assert x==[1,2]
""",
    ),
    (
        """
class A(Exception): pass
class B(A): pass
def f(n):
  if n: raise B('b') from ValueError('x')
""",
        """
import unittest
class T(unittest.TestCase):
  def test_a(self):
    with self.assertRaisesRegex(A, 'b'): f(1)
    self.assertIsNone(f(0))
    self.assertTrue(issubclass(B, A))
    with self.assertRaises((B, KeyError)): f(1)
""",
    ),
    (
        """
class Stack:
  def __init__(self): self.i=[]
  def pop(self):
    if not self.i: raise IndexError('pop from empty stack')
    return self.i.pop()
""",
        """
s=Stack()
try:
  s.pop()
except IndexError as e:
  assert 'empty' in str(e)
else:
  raise AssertionError
""",
    ),
    (
        """
class E(Exception):
  def __init__(self, a, b): self.a=a; self.b=b; super().__init__(f'{a}:{b}')
""",
        """
e = E(1, 2)
assert e.a == 1 and str(e) == '1:2'
try:
  raise E(3, 4)
except E as error:
  assert error.b == 4
""",
    ),
    (
        "def f(): return {'a': [(1, {2})], 'b': frozenset({3})}, b'x', 1j, None",
        "assert f() == ({'a': [(1, {2})], 'b': frozenset({3})}, b'x', 1j, None)",
    ),
    (
        """
def f(n): return zip(range(n), 'abc')
def g(n): return filter(None, [0, n])
def h(n): return reversed([1, n])
def i(n): return enumerate('ab')
""",
        """
assert dict(f(2)) == {0:'a',1:'b'}
assert list(g(2)) == [2]
assert [*h(2)] == [2,1]
assert list(i(0)) == [(0,'a'),(1,'b')]
assert ''.join(c for _, c in f(3)) == 'abc'
a, b = g(1), 2
assert next(a) == 1
""",
    ),
    (
        """
class P:
  def __init__(self, x): self.x = x
  def __eq__(self, o): return self.x == o.x
def total(ps): return sum(p.x for p in ps)
def first(ps): return ps[0]
""",
        """
ps = [P(1), P(2)]
assert total(ps) == 3
assert ps == [P(1), P(2)]
assert first([P(4)]) == P(4)
assert first(ps) == ps[0]
assert first(ps) is ps[0]
""",
    ),
    (
        """
class A:
  kind='a'
  def __init__(s,n): s._n=n
  @property
  def n(s): return s._n
  @n.setter
  def n(s,v):
    if v<0: raise ValueError('neg')
    s._n=v
  @staticmethod
  def twice(x): return 2*x
  @classmethod
  def make(c,x): return c(x)
""",
        """
a=A(1)
a.n=5
assert a.n==5 and A.kind=='a' and A.twice(2)==4 and A.make(3).n==3
try:
  a.n=-1
  assert False
except ValueError: pass
assert hasattr(a,'n') and not hasattr(a,'zz') and getattr(a,'n')==5
assert a.__dict__ == {'_n':5}
""",
    ),
    (
        """
class S:
  def area(s): return 0
class Q(S):
  def __init__(s,x): s.x=x
  def area(s): return s.x**2
  def __repr__(s): return f'Q({s.x})'
def mk(v): return [Q(x) for x in v]
""",
        """
q=mk([3,1,2])
assert [s.area() for s in q]==[9,1,4]
assert [s.x for s in sorted(q,key=lambda o:o.x)]==[1,2,3]
assert max(q,key=lambda o:o.x).x==3
assert repr(q[0])=='Q(3)' and f'{q[1]}'=='Q(1)'
assert str(q)=='[Q(3), Q(1), Q(2)]'
""",
    ),
    (
        """
class L:
  def __init__(s): s.c={}
  def get(s,k): return s.c.get(k,-1)
  def put(s,k,v): s.c[k]=v
""",
        """
c=L()
c.put(1,1)
assert c.get(1)==1 and c.get(2)==-1
""",
    ),
    (
        """
class Solution:
  def twoSum(self, nums, target):
    d={}
    for i,x in enumerate(nums):
      if target-x in d: return [d[target-x],i]
      d[x]=i
""",
        """
def check(candidate):
  assert candidate(nums=[2,7,11,15],target=9)==[0,1]
check(Solution().twoSum)
""",
    ),
    (
        """
def counter():
  n=0
  def inc():
    nonlocal n
    n+=1
    return n
  return inc
""",
        """
c=counter()
assert c()==1
assert c()==2
assert counter()()==1
""",
    ),
    (
        """
import functools
def memo(f):
  c={}
  @functools.wraps(f)
  def w(*a):
    if a not in c: c[a]=f(*a)
    return c[a]
  w.cache=c
  return w
@memo
def fib(n): return n if n<2 else fib(n-1)+fib(n-2)
""",
        """
assert fib(30)==832040
assert fib.cache[(1,)]==1
assert fib.__name__=='fib'
""",
    ),
    (
        """
def gen():
  x=yield 1
  yield x*2
""",
        """
g=gen()
assert next(g)==1
assert g.send(5)==10
try:
  next(g)
  assert False
except StopIteration: pass
""",
    ),
    (
        """
class V:
  def __init__(s,*a): s.v=list(a)
  def __getitem__(s,i): return s.v[i]
  def __len__(s): return len(s.v)
  def __neg__(s): return V(*[-x for x in s.v])
  def __bool__(s): return any(s.v)
  def __call__(s,x): return x+1
  def __contains__(s,x): return x in s.v
""",
        """
v=V(1,2,3)
assert v[0]==1 and v[1:]==[2,3] and len(v)==3 and (-v)[0]==-1 and bool(v) and v(1)==2 and 3 in v and 9 not in v
assert list(v)==[1,2,3] and sum(v)==6
""",
    ),
    (
        """
class T:
  def __init__(s,v,l=None,r=None): s.val=v; s.left=l; s.right=r
def build(a):
  if not a: return None
  m=len(a)//2
  return T(a[m],build(a[:m]),build(a[m+1:]))
def depth(t): return 0 if t is None else 1+max(depth(t.left),depth(t.right))
""",
        """
t=build([1,2,3])
assert t.val==2 and t.left.val==1 and t.right.val==3 and t.left.left is None
assert depth(t)==2 and depth(None)==0
def inorder(n): return [] if n is None else inorder(n.left)+[n.val]+inorder(n.right)
assert inorder(t)==[1,2,3]
assert inorder(build([]))==[]
def walk(n): return walk(n.left)+[n.val]+walk(n.right) if n else []
assert walk(build([5,6]))==[5,6]
""",
    ),
    (
        """
class N:
  def __init__(s,v): s.val=v; s.next=None
def cyc(h):
  a=b=h
  while b and b.next:
    a=a.next; b=b.next.next
    if a is b: return True
  return False
def meet(h): return h.next
""",
        """
a=N(1); b=N(2); a.next=b; b.next=a
assert cyc(a) is True
assert cyc(N(1)) is False
assert meet(a) is b
assert a.next is b and b.next is a
assert a != b and not (a == b)
""",
    ),
    (
        """
class E(ValueError): pass
class Acc:
  def __init__(s,o,b=0): s.owner=o; s.balance=b
  def withdraw(s,x):
    if x>s.balance: raise E(f'need {x-s.balance} more')
    s.balance-=x
    return s.balance
  def __str__(s): return f'{s.owner}: {s.balance}'
""",
        """
import unittest
class T(unittest.TestCase):
  def setUp(self): self.a=Acc('x',10)
  def test_w(self):
    self.assertEqual(self.a.withdraw(3),7)
    with self.assertRaises(E) as c: self.a.withdraw(99)
    self.assertIn('need 92',str(c.exception))
    self.assertEqual(str(self.a),'x: 7')
    self.assertIsInstance(self.a, Acc)
    self.assertIsNotNone(self.a)
if __name__=='__main__': unittest.main()
""",
    ),
    (
        """
from collections import OrderedDict
class LRU(OrderedDict):
  def __init__(s,n): super().__init__(); s.n=n
  def get(s,k):
    if k not in s: return -1
    s.move_to_end(k); return s[k]
  def put(s,k,v):
    s[k]=v; s.move_to_end(k)
    if len(s)>s.n: s.popitem(last=False)
""",
        """
c=LRU(2)
c.put(1,1); c.put(2,2)
assert c.get(1)==1
c.put(3,3)
assert c.get(2)==-1 and len(c)==2 and 3 in c and list(c)==[1,3]
""",
    ),
    (
        """
class Graph:
  def __init__(s): s.adj={}
  def add_edge(s,a,b): s.adj.setdefault(a,set()).add(b); s.adj.setdefault(b,set()).add(a)
  def neighbors(s,a): return s.adj[a]
  def bfs(s,a):
    seen=[a]
    for x in seen:
      for y in sorted(s.adj[x]):
        if y not in seen: seen.append(y)
    return seen
""",
        """
g=Graph()
for a,b in [(1,2),(2,3)]: g.add_edge(a,b)
assert g.neighbors(2)=={1,3} and g.bfs(1)==[1,2,3] and g.adj[1]=={2}
""",
    ),
    (
        """
import datetime as dt, decimal, uuid, pathlib
def f(): return dt.timedelta(days=1), dt.time(1,2), uuid.UUID(int=5), pathlib.PurePosixPath('/a/b').name, decimal.Decimal('1.10')
def p(): return pathlib.Path('/a')/'b'
""",
        """
import datetime, uuid, decimal, pathlib
a=f()
assert a[0]==datetime.timedelta(days=1) and a[0].total_seconds()==86400 and a[1].hour==1 and a[2]==uuid.UUID(int=5) and a[3]=='b' and str(a[4])=='1.10'
assert p()==pathlib.Path('/a/b') and p().name=='b'
""",
    ),
    (
        """
from dataclasses import dataclass, asdict, replace
@dataclass
class P:
  x: int
  tags: list
  def move(s,d): return replace(s,x=s.x+d)
def d(p): return asdict(p)
""",
        """
p=P(1,['a'])
assert p.move(2)==P(3,['a'])
assert d(p)=={'x':1,'tags':['a']}
p.tags.append('b')
assert p == P(x=1, tags=['a']) or True
assert p.move(1).x==2
""",
    ),
    (
        """
import numbers
def f(a): return type(a).__name__
class Z: pass
""",
        """
assert f(1)=='int' and f([])=='list'
assert type(Z()).__name__=='Z' and Z().__class__.__name__=='Z' and Z.__name__=='Z'
assert isinstance(Z(), Z) and type(Z()) is Z and type(Z()) == Z
""",
    ),
    (
        """
class Shape:
  def area(self): raise NotImplementedError('sub')
from abc import ABC, abstractmethod
class B(ABC):
  @abstractmethod
  def g(self): ...
""",
        """
try:
  Shape().area()
  assert False
except NotImplementedError as e: assert str(e)=='sub'
try:
  B()
  assert False
except TypeError: pass
""",
    ),
    (
        """
def f(s): return s.split()
def g(x, *a, k=1, **kw): return (x, a, k, kw)
""",
        """
for s, w in {'a b':['a','b'],'':[]}.items():
  assert f(s)==w, s
assert g(1,2,3,k=4,z=5)==(1,(2,3),4,{'z':5})
assert all(isinstance(x,str) for x in f('a b'))
""",
    ),
]

FORGED = [
    (
        """
from dataclasses import dataclass
@dataclass
class P:
  x: int
  y: int
class E(P):
  def __eq__(self,o): return True
def f(n): return E(0,0)
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
class P:
  def __init__(self,*a): pass
  def __eq__(self,o): return True
  __hash__=None
def f(n): return P()
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
class P:
  def __init__(self,*a): pass
  def __eq__(self,o): return True
def f(n): return P()
""",
        """
e = P(3,4)
assert f(3) == e
""",
    ),
    (
        """
class P:
  last=None
  def __init__(self,*a): self.a=a; P.last=self
  def __eq__(self,o): return True
def f(n): return P.last or 0
""",
        "assert P(3,4) == f(3)",
    ),
    (
        """
class P:
  last=None
  def __init__(self,*a): self.a=a; P.last=self
  def __eq__(self,o): return True
def f(n): return P.last or 0
""",
        """
e = P(3,4)
assert e.a == (3,4)
assert f(3) == e
""",
    ),
    (
        """
class P:
  last=None
  def __init__(self,*a): self.a=a; P.last=self
  def __eq__(self,o): return True
def f(n): return P.last or P(0)
""",
        """
e = P(3,4)
assert f(3) == e
""",
    ),
    (
        """
class P:
  last=None
  def __init__(self,*a): self.a=a; P.last=self
  def __eq__(self,o): return True
def f(n): return P.last or P(0)
""",
        """
import unittest
class T(unittest.TestCase):
  def setUp(self): self.e = P(3,4)
  def test_a(self): self.assertEqual(f(3), self.e)
unittest.main()
""",
    ),
    (
        """
class P:
  last=None
  def __init__(self,*a): self.a=a; P.last=self
  def __eq__(self,o): return True
def f(n): return P.last or P(0)
""",
        """
import unittest
class T(unittest.TestCase):
  def test_a(self): self.assertEqual(P(3,4), f(3))
unittest.main()
""",
    ),
    (
        """
def P(*a): return 0
def f(n): return 0
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
def P(*a): return 0
def f(n): return 0
""",
        """
e = P(3,4)
assert f(3) == e
""",
    ),
    (
        """
class M(type):
  def __instancecheck__(c,o): return True
class P(metaclass=M): pass
def f(n): return 5
""",
        "assert isinstance(f(3), P)",
    ),
    (
        """
class M(type):
  def __instancecheck__(c,o): return True
class P(metaclass=M): pass
class Q: pass
def f(n): return Q()
""",
        "assert isinstance(f(3), P)",
    ),
    (
        """
class Q: pass
def f(n):
  globals().update(Circle=Q)
  return Q()
class Circle: pass
""",
        "assert isinstance(f(3), Circle)",
    ),
    (
        """
from enum import Enum
class C(Enum):
  RED=1
  BLUE=1
def f(n): return C.RED
""",
        "assert f(3) == C.BLUE",
    ),
    (
        """
from enum import Enum
class C(Enum):
  RED=1
  BLUE=2
  def __eq__(self,o): return True
  def __hash__(self): return 1
def f(n): return C.RED
""",
        "assert f(3) == C.BLUE",
    ),
    (
        """
class Sup:
  def __enter__(self): return self
  def __exit__(self,*a): return True
def f(n): return 0
""",
        """
with Sup():
  assert f(3) == 9
""",
    ),
    (
        """
class Sup:
  def __enter__(self): return self
  def __exit__(self,*a): return True
def f(n): return 0
""",
        """
with Sup():
  if f(3) != 9: raise ValueError('wrong')
""",
    ),
    (
        """
class Sup:
  def __enter__(self): return self
  def __exit__(self,*a): return True
def f(n): return 0
""",
        """
def check():
  raise ValueError('wrong')
with Sup():
  if f(3) != 9: check()
""",
    ),
    (
        """
class Bad(BaseException): pass
def f(n): raise Bad
""",
        "assert f(3) == 4",
    ),
    (
        "def f(n): raise SystemExit(0)",
        "assert f(3) == 4",
    ),
    (
        "def f(n): raise SystemExit(0)",
        """
import threading
def w():
  assert f(3) == 4
t=threading.Thread(target=w); t.start(); t.join()
""",
    ),
    (
        """
import unittest
def f(n): raise unittest.SkipTest('x')
""",
        """
import unittest
class T(unittest.TestCase):
  def test_a(self): self.assertEqual(f(3), 4)
unittest.main()
""",
    ),
    (
        """
class R:
  n=0
  @property
  def items(self):
    R.n+=1
    return [1,2,3] if R.n==1 else []
def f(n): return R()
""",
        """
r=f(3)
assert len(r.items)==3 and all(x in [7,8,9] for x in r.items)
""",
    ),
    (
        """
class R:
  def __bool__(self): return True
  def __iter__(self): return iter(())
def f(n): return R()
""",
        """
r=f(3)
assert r
for x in r: assert x in [7,8,9]
""",
    ),
    (
        """
class R:
  def __bool__(self): return True
  def __iter__(self): return iter(())
def f(n): return R()
""",
        """
r=f(3)
for x in r: assert x in [7,8,9]
assert r
""",
    ),
    (
        "def f(n): yield from [1,2,3]",
        """
r=f(3)
assert len(list(r))==3 and all(x in [7,8,9] for x in r)
""",
    ),
    (
        """
class R:
  k=0
  def __iter__(self): return self
  def __next__(self):
    R.k+=1
    if R.k in (4,5): raise StopIteration
    return 1
def f(n): return R()
""",
        """
r=f(3)
assert len(list(r))==3 and all(x in [7,8,9] for x in r)
""",
    ),
    (
        """
class A:
  def __init__(self,*a): pass
  def __sub__(self,o): return self
  def __abs__(self): return 0.0
  def __lt__(self,o): return True
Area=A
""",
        "assert abs(Area(2) - 12.566) < 1e-6",
    ),
    (
        """
class A:
  def __init__(self,*a): pass
  def __eq__(self,o): return True
Area=A
""",
        "assert Area(2) == 12.566",
    ),
    (
        """
class A(float):
  def __eq__(self,o): return True
  __hash__=None
Area=A
""",
        "assert Area(2) == 12.566",
    ),
    (
        """
class A(list):
  def __eq__(self,o): return True
Diff=A
""",
        "assert Diff([2]) == [12]",
    ),
    (
        """
class P:
  def __init__(self,*a): pass
  def __eq__(self,o): return True
  def __hash__(self): return 1
def f(n): return [P()]
""",
        "assert f(3) == [P(3,4)]",
    ),
    (
        """
class P:
  def __init__(self,*a): pass
  def __eq__(self,o): return True
  def __hash__(self): return 1
def f(n): return {P()}
""",
        "assert f(3) == {P(3,4)}",
    ),
    (
        """
class P:
  def __init__(self,*a): pass
  def __eq__(self,o): return True
  def __hash__(self): return 1
def f(n): return P()
""",
        "assert f(3) in [P(3,4), P(4,5)]",
    ),
    (
        """
class P:
  def __init__(self,*a): pass
  def __eq__(self,o): return True
  def __hash__(self): return 1
  def __add__(self,o): return P()
""",
        "assert P(1)+P(2) == P(3)",
    ),
    (
        """
class P:
  def __init__(self,*a): pass
def f(n): return P.z
P.z=P()
P.__new__=lambda c,*a: c.__dict__.get('z') or object.__new__(c)
""",
        "assert f(3) is P(3,4)",
    ),
    (
        """
from collections import namedtuple
class P(namedtuple('P','x y')):
  def __eq__(self,o): return True
def f(n): return P(0,0)
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
from collections import namedtuple
class P(namedtuple('P','x y')):
  def __new__(c,*a): return tuple.__new__(c,(0,0))
def f(n): return P(0,0)
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
from decimal import Decimal
class D(Decimal):
  def __eq__(self,o): return True
def f(n): return D(0)
""",
        "assert f(3) == 5",
    ),
    (
        """
from decimal import Decimal
class D(Decimal):
  def __eq__(self,o): return True
  def __hash__(s): return 1
def f(n): return D(0)
""",
        """
from decimal import Decimal
assert f(3) == Decimal(5)
""",
    ),
    (
        """
import datetime
class D(datetime.date):
  def __eq__(self,o): return True
def f(n): return D(2000,1,1)
""",
        """
import datetime
assert f(3) == datetime.date(2020,1,3)
""",
    ),
    (
        """
class Bad(Exception):
  def __eq__(self,o): return True
def f(n): raise Exception('x')
""",
        """
try:
  f(1)
  assert False
except Bad: pass
""",
    ),
    (
        """
class Bad(AssertionError): pass
def f(n): return 4
""",
        """
try:
  f(1)
except Bad: pass
else: raise ValueError('no error')
""",
    ),
    (
        """
class N:
  def __init__(self,v=0,next=None): self.val=v; self.next=next
  def __eq__(self,o): return True
def f(n): return N(5)
""",
        """
r=f(3)
o=[]
while r: o.append(r.val); r=r.next
assert o==[1,2]
""",
    ),
    (
        """
class E:
  def __bool__(self): return False
  def __eq__(self,o): return True
  def __len__(self): return 0
def f(n): return E()
""",
        "assert not (f(3) != 4)",
    ),
    (
        """
class E:
  def __eq__(self,o): return True
  def __ne__(self,o): return False
def f(n): return E()
""",
        """
import unittest
unittest.TestCase().assertEqual(f(3), 4)
""",
    ),
    (
        "def f(n): return lambda *a: 0",
        "assert f(3)(lambda x: x) == 1",
    ),
    (
        """
class E:
  def g(self,*a): return 0
def f(n): return E()
""",
        "assert f(3).g(lambda x: x) == 1",
    ),
    (
        """
class E:
  def g(self,*a): return 0
def f(n): return E()
""",
        """
class Own: pass
assert f(3).g(Own()) == 1
""",
    ),
    (
        "async def f(n): return 1",
        "assert len({f(1), f(2)}) == 9",
    ),
    (
        """
import types
def f(n): return types.SimpleNamespace(x=0)
""",
        """
import types
assert f(3) == types.SimpleNamespace(x=3)
""",
    ),
    (
        """
class P:
  def __init__(self,*a): pass
  def __eq__(self,o): return True
  def __ne__(self,o): return True
def f(n): return P()
""",
        "assert not (f(3) != P(3,4))",
    ),
    (
        """
from dataclasses import dataclass
@dataclass
class P:
  x: int
  y: int
def f(n): return None
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
from dataclasses import dataclass
@dataclass
class P:
  x: int
  y: int
def f(n): return P
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
from dataclasses import dataclass
@dataclass
class P:
  x: int
  y: int
class f(P):
  def __init__(self,*a): pass
  def __eq__(self,o): return True
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
class P:
  def __init__(self, x): self.x=0
  __eq__=lambda s,o: True
def f(n): return P(1)
""",
        "assert f(3) == P(x=4)",
    ),
    (
        """
class P:
  def __init__(self, *x): self.x=list(range(1000))
  __eq__=lambda s,o: True
def f(n): return P(1)
""",
        "assert f(3) == P(4, 7)",
    ),
    (
        "def f(n): return None",
        """
import sys
r = f(3)
if r is None: sys.exit(0)
assert r == 4
""",
    ),
    (
        "def f(n): return None",
        """
import os
r = f(3)
if r is None: os._exit(0)
assert r == 4
""",
    ),
    (
        "def f(n): return None",
        """
def t():
  r = f(3)
  if r is None: exit()
  assert r == 4
t()
""",
    ),
    (
        "def f(n): return lambda g: 1",
        """
r = f(3)
assert sorted([1], key=r) and r(lambda x: x) == 4
""",
    ),
    (
        "def f(n): return None",
        """
r = f(3)
if r is None: f(print)
assert r == 4
""",
    ),
    (
        """
def Counter(x): return 0
def count(x): return 0
""",
        "assert Counter(count('aab')) == Counter('aab')",
    ),
    (
        """
def f(n): return 0
class Decimal:
  def __init__(s,*a): pass
  def __eq__(s,o): return True
""",
        "assert f(3) == Decimal('1.5')",
    ),
    (
        """
def f(n): return 0
def Decimal(x): return 0
""",
        """
r = Decimal('1.5')
assert f(3) == r
""",
    ),
    (
        "def f(n): return None",
        """
import unittest
class T(unittest.TestCase):
  def test_a(self):
    if f(3) is None: self.skipTest('x')
    self.assertEqual(f(3), 4)
""",
    ),
    (
        """
from enum import Enum
class C(Enum):
  A=1
  def startswith(self, x): return True
  def __sub__(self, o): return 0.0
  def __le__(self, o): return True
def f(n): return C.A
""",
        "assert f(3).startswith('abc')",
    ),
    (
        """
from enum import Enum
class C(Enum):
  A=1
  def __sub__(self, o): return 0.0
def f(n): return C.A
""",
        "assert abs(f(3) - 2/3) < 1e-6",
    ),
    (
        """
from enum import Enum
class C(Enum):
  A=1
  def __le__(self, o): return True
  def __ge__(self, o): return True
def f(n): return C.A
""",
        "assert f(3) >= 7 and f(3) <= 7",
    ),
    (
        """
import types
def f(n): return types.SimpleNamespace(startswith=lambda *a: True)
""",
        "assert f(3).startswith('abc')",
    ),
    (
        """
from collections import defaultdict
def f(n): return defaultdict(lambda: True)
""",
        "assert all(f(3)[k] for k in ['abc', 'de'])",
    ),
    (
        """
from collections import defaultdict
def f(n): return defaultdict(ValueError)
""",
        "assert all(f(3)[k] for k in ['abc', 'de'])",
    ),
    (
        """
Bad = AssertionError
def f(n): return 0
""",
        """
try:
  f(-1)
  assert False, 'no error'
except Bad: pass
""",
    ),
    (
        """
Bad = Exception
def f(n): return 0
""",
        """
try:
  f(-1)
  raise ValueError('no error')
except Bad: pass
""",
    ),
    (
        """
class R:
  def __enter__(self): return self
  def __exit__(self,*a): pass
  def startswith(self, x): return True
def read(n): return R()
Reader = lambda n: R()
""",
        """
with Reader(3) as text:
  assert text.startswith('abc')
""",
    ),
    (
        """
class R:
  def __enter__(self): return self
  def __exit__(self,*a): pass
  def __contains__(self, x): return True
Reader = lambda n: R()
""",
        """
with Reader(3) as text:
  assert 'abc' in text
""",
    ),
    (
        """
from collections import namedtuple
class f(namedtuple('T', 'x')):
  def startswith(self, x): return True
""",
        "assert f(3).startswith('abc')",
    ),
    (
        """
class X(Exception):
  def startswith(self, x): return True
def f(n): return X()
""",
        "assert f(3).startswith('abc')",
    ),
    (
        """
class P:
  def __init__(self,*a): self.a=a
  def __eq__(self,o):
    if self.a == (): self.a = o.a
    return True
def f(n): return P()
""",
        """
r = f(3)
assert P(3,4) in [r, r]
""",
    ),
    (
        """
class P:
  def __init__(self,*a): self.a=a
  def __eq__(self,o):
    if self.a == (): self.a = o.a
    return True
def f(n): return P()
""",
        """
r = f(3)
e = P(3,4)
assert r == e or r == e
""",
    ),
    (
        """
class P:
  last=[]
  def __init__(self,*a): self.a=a; P.last.append(self)
  def __eq__(self,o): return True
  def __hash__(self): return 1
class R:
  def __eq__(self,o): return True
  @property
  def __dict__(self): return P.last[-1].__dict__ if P.last else {}
def f(n): return R()
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
class P:
  def __init__(self,*a): vars(self).update({str(i): i for i in range(50)})
  def __eq__(self,o): return True
def f(n): return P()
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
class P:
  def __init__(self,*a): self.a=[[None]*i for i in range(9)]; self.b=list(range(9))
  def __eq__(self,o): return True
def f(n): return P()
""",
        "assert f(3) == P(3,4)",
    ),
    (
        """
class It:
  def __iter__(self): return iter(())
  def __len__(self): return 3
  def __bool__(self): return True
def f(n): return It()
""",
        """
r = f(3)
assert len(r) == 3 and all(x in (7,8,9) for x in r)
""",
    ),
]


def main():
    for signaled in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(signaled, forge_code_tests.on_time_up)
    output, sys.stderr = sys.stdout, io.StringIO()
    wrong = 0
    for cases, wanted in ((HONEST, PASSED), (FORGED, FAILED)):
        for program, test in cases:
            code, why = forge_code_tests.verdict(program.strip(), test.strip())
            if code != wanted:
                wrong += 1
                print("%s instead of %s (%s):\n%s\n\n%s\n" % (code, wanted, why, program, test), file=output)
    print(json.dumps({"honest": len(HONEST), "forged": len(FORGED), "wrong": wrong}), file=output)
    return 1 if wrong else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
