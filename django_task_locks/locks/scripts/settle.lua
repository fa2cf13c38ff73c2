-- settle: goes on handing over where a release had more to do than one call may. Whoever claims does
-- so too, so what a client left undone is done by the next worker.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
--
-- returns {"settled", is there more, granted id, ...} | {"foreign", key}

--@include _base
--@include _grant

local bad = foreign_for_hand_over()
if bad then return { 'foreign', bad } end
next_number()
local granted = settle()
return reply('settled', reply(is_unsettled(), granted))
