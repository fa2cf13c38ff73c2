-- begin_rebuild: closes the locks under a new epoch: until it is opened only `restore` changes them.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   number of the new epoch
-- ARGV[2]   the new epoch, closed: -number:run id
--
-- returns {"begun"} | {"newer", epoch}: another rebuild has a higher number | {"foreign", key}
-- Repeating it changes nothing.

--@include _base

local bad = foreign(EPOCH, 'string') or foreign(CONFIRMED, 'set') or foreign_counter(SEQ)
if bad then return { 'foreign', bad } end
local found = redis.call('GET', EPOCH) or NO_EPOCH
if found == ARGV[2] then return { 'begun' } end
local number = tonumber(found:match('^-?(%d+):')) or 0
if number >= tonumber(ARGV[1]) then return { 'newer', found } end
redis.call('SET', EPOCH, ARGV[2])
redis.call('DEL', CONFIRMED)
return { 'begun' }
