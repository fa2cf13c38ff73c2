-- inspect_resource: who holds a resource and who waits for it, in order; read-only.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   resource
-- ARGV[2]   most holders and most waiters to report
--
-- returns {"resource", holder mode ("" if free), number of holders, of exclusive and of shared
--          waiters, kind ("holder" | "waiter"), mode, id, state, owner, since, label, score, ...}
--         | {"foreign", key}; eight values for each

--@include _base

local resource, most = ARGV[1], tonumber(ARGV[2])
local lock, wait, wait_x = LOCK .. resource, WAIT .. resource, WAIT_X .. resource
local bad = foreign(wait, 'zset') or foreign(wait_x, 'zset')
if bad then return { 'foreign', bad } end
local mode, holders = holders_of(resource, most)
if mode == 'foreign' then return { 'foreign', lock } end
local count = redis.pcall('SCARD', lock)
if type(count) ~= 'number' then count = #holders end
local exclusive_waiters = redis.call('ZCARD', wait_x)
local values = { mode, count, exclusive_waiters, redis.call('ZCARD', wait) - exclusive_waiters }
local function add(kind, its_mode, id)
  local request = read(id) or {}
  values[#values + 1] = kind
  values[#values + 1] = its_mode
  values[#values + 1] = id
  for _, name in ipairs({ 'state', 'owner', 'since', 'label', 'score' }) do
    values[#values + 1] = request[name] or ''
  end
end
for _, id in ipairs(holders) do add('holder', mode, id) end
for _, id in ipairs(redis.call('ZRANGE', wait, 0, most - 1)) do
  add('waiter', redis.call('ZSCORE', wait_x, id) and 'exclusive' or 'shared', id)
end
return reply('resource', values)
