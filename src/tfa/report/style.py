"""How the report looks: readable on a phone, in the light and in the dark."""

STYLE = """
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1c2126; --faint: #5a636c; --line: #dfe3e7;
  --shade: #e9ecef; --accent: #1f6f4a; --dot: #3a6ea5; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #15181b; --ink: #e6e9ec; --faint: #9aa4ad; --line: #30363c; --shade: #24292e; --accent: #7fd1a5;
    --dot: #7fb0e6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: .5rem 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
p, li { max-width: 46rem; margin: .4rem 0; }
.small, figcaption { color: var(--faint); font-size: .875rem; }
dt { margin-top: .8rem; } dt b { color: var(--accent); }
dd { margin: 0; max-width: 46rem; }
figure { margin: 1rem 0; } figcaption { max-width: 44rem; margin-top: .4rem; }
svg { display: block; width: 100%; max-width: 40rem; height: auto; border: 1px solid var(--line);
  border-radius: .3rem; }
svg text { font: 12px system-ui, sans-serif; fill: var(--faint); }
svg text.label { fill: var(--ink); }
svg .axis { fill: none; stroke: var(--faint); } svg .grid { fill: none; stroke: var(--line); }
svg circle.dot { fill: var(--dot); fill-opacity: .35; stroke: var(--dot); stroke-width: .6; }
svg circle.chosen { fill: var(--accent); }
svg polyline { fill: none; stroke: var(--dot); stroke-width: 2; } svg polyline.chosen { stroke: var(--accent); }
svg text.line { fill: var(--dot); } svg text.chosen { fill: var(--accent); }
svg .bar { fill: var(--dot); }
.strip { display: flex; flex-wrap: wrap; gap: .8rem; align-items: flex-start; padding: .5rem 0;
  border-bottom: 1px solid var(--line); }
.tile { margin: 0; width: 160px; } .tile img { display: block; max-width: 160px; border-radius: .3rem; }
.gone { width: 160px; height: 100px; background: var(--shade); color: var(--faint); display: grid;
  place-items: center; border-radius: .3rem; font-size: .875rem; }
"""
