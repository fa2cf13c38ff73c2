-- open_epoch: ends a rebuild: from here on locks are granted again.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   the epoch, open: number:run id
-- ARGV[2]   a number below all that are given out from here on
--
-- returns {"opened", is there more to settle} | {"foreign", key}

--@include _base
--@include _grant

local bad = foreign(CONFIRMED, 'set') or foreign(LANES, 'hash') or foreign_for_hand_over()
if bad then return { 'foreign', bad } end
-- Numbers go on above all that were given before the loss: they follow the time, and no deployment
-- needs EACH_MS of them in a millisecond for long. The caller's follows another clock: that of this
-- server may be behind that of its predecessor.
local floor = (now_ms() - EPOCH_BEGAN) * EACH_MS
local number = tonumber(redis.call('GET', SEQ) or '0')
redis.call('SET', SEQ, as_text(math.max(number, floor, ARGV[2])))
redis.call('DEL', CONFIRMED)
redis.call('SET', EPOCH, ARGV[1])
light_ready_lanes()
light('')
return { 'opened', is_unsettled() }
