-- watch: notes that somebody waits for the end of a request, which then leaves a sign.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   id
--
-- returns {"watched"} | {"unknown"} | {"foreign", key}
-- The mark is part of the request and goes with it; a request that nobody watches leaves no sign.

--@include _base

local request, bad = read(ARGV[1])
if bad then return { 'foreign', bad } end
if not request then return { 'unknown' } end
if not request.watched then
  request.watched = true
  redis.call('SET', REQUEST .. request.id, record_of(request))
  redis.pcall('LTRIM', ENDED .. request.id, 1, 0) -- the sign of an earlier request of this id
end
return { 'watched' }
