-- verify: which of an owner's requests are not held, or not whole: without record, lock, place in the
-- registry or slot; read-only.
--
-- KEYS[1]   anchor
-- KEYS[2]   absent
-- ARGV[1]   owner
-- ARGV[2..] id and token of each
--
-- returns {"verified", time in ms, id, ...}

--@include _base

local owner = ARGV[1]

local function is_held(request, token)
  return request and request.state == 'held' and request.owner == owner and request.token == token
end

local function has_locks(request)
  local names, has_all = {}, true
  for index, resource in ipairs(request.exclusive) do names[index] = LOCK .. resource end
  chunked(names, function(...)
    for _, value in ipairs(redis.call('MGET', ...)) do
      has_all = has_all and (value == UNAWAITED .. request.id or value == AWAITED .. request.id)
    end
  end)
  for _, resource in ipairs(request.shared) do
    has_all = has_all and (redis.pcall('GET', LOCK .. resource) == SOLE .. request.id
      or redis.pcall('SISMEMBER', LOCK .. resource, request.id) == 1)
  end
  return has_all
end

local function is_registered(request)
  if redis.pcall('SISMEMBER', OWNER .. owner, request.id) ~= 1 then return false end
  if not request.slot or not request.lane then return true end
  return redis.pcall('HGET', SLOT .. owner, request.slot:match('^%d+')) == request.id
end

local found, pairs_given = { as_text(now_ms()) }, { unpack(ARGV, 2) }
for index = 1, #pairs_given, 2 do
  local id, token = pairs_given[index], pairs_given[index + 1]
  local request = read(id)
  if not (is_held(request, token) and has_locks(request) and is_registered(request)) then
    found[#found + 1] = id
  end
end
return reply('verified', found)
