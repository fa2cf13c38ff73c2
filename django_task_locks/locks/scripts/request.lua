-- request: grants all resources of a request or none.
--
-- KEYS[1]    anchor
-- ARGV[1]    id
-- ARGV[2]    mode: "wait" queues a blocked request, "try" leaves nothing of it
-- ARGV[3]    owner: a process that holds it from the grant on, or queue/<queue> for a task
-- ARGV[4]    slot: number.generation of the owner's executor, or ""
-- ARGV[5]    claims: "1" if the owner holds it from the grant on, "0" if a worker claims it later
-- ARGV[6]    ttl of the owner in seconds ("" for a queue)
-- ARGV[7]    queue
-- ARGV[8]    lane
-- ARGV[9]    lane's description: JSON with queue and versions
-- ARGV[10]   priority, -100 to 100
-- ARGV[11]   label for operators
-- ARGV[12]   number of exclusive resources
-- ARGV[13..] the exclusive resources, then the shared ones
--
-- returns {"held", token} | {"granted", ""} | {"waiting", ""}
--         | {"blocked", resource, mode, id, state, owner, since, label, ...}: seven for each obstacle
--         | {"foreign", key} | {"closed", owner} | {"stale_slot", slot}
-- A known id is answered with its present state, so that a repeated call changes nothing.

--@include _base
--@include _grant

local id, mode, owner, slot, claims, ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local queue, lane, description, priority, label = ARGV[7], ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local exclusive, shared = {}, {}
for index = 13, 12 + ARGV[12] do exclusive[#exclusive + 1] = ARGV[index] end
for index = 13 + ARGV[12], #ARGV do shared[#shared + 1] = ARGV[index] end

local refused = refusal(claims == '1' and owner or '', slot)
if refused then return refused end
local known, bad = read(id)
if bad then return { 'foreign', bad } end
if known then return { known.state, known.token } end

bad = foreign(OWNER .. owner, 'set') or foreign(LANES, 'hash') or foreign_counter(SEQ)
  or claims == '1' and (foreign(OWNERS, 'hash') or foreign_counter(TOKEN))
  or claims == '0' and (foreign(READY .. lane, 'zset') or foreign(WAKE .. lane, 'zset'))
if bad then return { 'foreign', bad } end

local function is_free()
  local keys = {}
  for _, resource in ipairs(exclusive) do
    keys[#keys + 1] = LOCK .. resource
    keys[#keys + 1] = WAIT_X .. resource
    keys[#keys + 1] = WAIT_S .. resource
  end
  local locks = {}
  for _, resource in ipairs(shared) do
    keys[#keys + 1] = WAIT_X .. resource
    locks[#locks + 1] = LOCK .. resource
  end
  local taken = 0
  chunked(keys, function(...) taken = taken + redis.call('EXISTS', ...) end)
  -- SDIFF looks at the type of each key, whatever the others hold: an error is an exclusive holder
  chunked(locks, function(...)
    if redis.pcall('SDIFF', REQUEST .. id, ...).err then taken = taken + 1 end
  end)
  return taken == 0
end

local score = (100 - priority) * 8796093022208 + begin() -- 2^43
local request = {
  id = id, owner = owner, slot = slot, lane = lane, claims = claims, token = '',
  score = score, score_text = string.format('%.0f', score),
  exclusive = exclusive, shared = shared,
}

-- Whether an unclaimed grant scores later than this request: only then anything can be revoked.
local function has_later_grants()
  for _, other in ipairs(redis.call('HKEYS', LANES)) do
    local last = redis.pcall('ZREVRANGE', READY .. other, 0, 0, 'WITHSCORES')
    if not last.err and last[2] and tonumber(last[2]) > score then return true end
  end
  return false
end

local obstacles, revocable = {}, {}
if not is_free() then
  for _, resource in ipairs(exclusive) do
    bad = bad or foreign(WAIT_X .. resource, 'zset') or foreign(WAIT_S .. resource, 'zset')
    local type = redis.call('TYPE', LOCK .. resource).ok
    if type ~= 'none' and type ~= 'string' and type ~= 'set' then bad = LOCK .. resource end
  end
  for _, resource in ipairs(shared) do
    bad = bad or foreign(WAIT_X .. resource, 'zset') or foreign(WAIT_S .. resource, 'zset')
    local type = redis.call('TYPE', LOCK .. resource).ok
    if type ~= 'none' and type ~= 'string' and type ~= 'set' then bad = LOCK .. resource end
  end
  if bad then return { 'foreign', bad } end
  obstacles, revocable = survey(request, has_later_grants(), 10)
end

if #obstacles > 0 and mode == 'try' then
  local values = {}
  append_obstacles(values, obstacles, 10)
  return reply('blocked', values)
end

local revoked = {}
for _, other in ipairs(revocable) do
  if not revoked[other] then
    revoked[other] = true
    revoke(read(other))
  end
end

redis.call('HSET', REQUEST .. id, 'state', 'waiting', 'score', request.score_text, 'owner', owner,
  'queue', queue, 'lane', lane, 'slot', slot, 'claims', claims, 'label', label, 'token', '',
  'x', cjson.encode(exclusive), 's', cjson.encode(shared))
redis.call('SADD', OWNER .. owner, id)
if claims == '1' then
  redis.call('HSET', OWNERS, owner, ttl)
elseif redis.call('HSETNX', LANES, lane, description) == 1 then
  redis.call('HINCRBY', LANES, '', 1)
  light('')
end
if #obstacles == 0 then
  grant(request)
  return { request.state, request.token }
end
enqueue(request)
set_state(request, 'waiting')
return { 'waiting', '' }
