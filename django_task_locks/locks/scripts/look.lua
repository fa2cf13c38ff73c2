-- look: what Redis says of itself; read-only.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
--
-- returns {"found", epoch, run id of the server, "" if it does not tell} | {"foreign", key}

local found = redis.pcall('GET', EPOCH) or NO_EPOCH
if type(found) == 'table' then return { 'foreign', EPOCH } end
local info = redis.pcall('INFO', 'server') -- which some servers refuse, or leave this out of
return { 'found', found, type(info) == 'string' and info:match('run_id:(%x+)') or '' }
