-- look: what Redis says of itself; read-only.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
--
-- returns {"found", epoch, run id of the server} | {"foreign", key}

local found = redis.pcall('GET', EPOCH) or NO_EPOCH
if type(found) == 'table' then return { 'foreign', EPOCH } end
return { 'found', found, redis.call('INFO', 'server'):match('run_id:(%x+)') or '' }
