-- extend_lead: gives the lead of a job another end; one that somebody else has by now stays as it is.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   job
-- ARGV[2]   who was given the lead
-- ARGV[3]   milliseconds from now; 0 ends the lead
--
-- returns {"extended"} | {"ended"}: it does not lead any more | {"foreign", key}

--@include _base

local key = LEADER .. ARGV[1]
local bad = foreign(key, 'string')
if bad then return { 'foreign', bad } end
if redis.call('GET', key) ~= ARGV[2] then return { 'ended' } end
redis.call('PEXPIRE', key, ARGV[3])
return { 'extended' }
