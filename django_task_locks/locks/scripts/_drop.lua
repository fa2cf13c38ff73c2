-- Ending a request without handing over: what it leaves is noted for `settle`.

local function drop(request)
  redis.call('DEL', REQUEST .. request.id, GRANT .. request.id)
  if request.state == 'waiting' then
    dequeue(request)
  elseif request.state == 'due' then
    redis.pcall('ZREM', DUE, request.id)
  else
    give_back(request)
    if request.state == 'granted' then redis.pcall('ZREM', READY .. request.lane, request.id) end
  end
  redis.pcall('SREM', OWNER .. request.owner, request.id)
  if request.slot then
    local number = request.slot:match('^%d+')
    if redis.pcall('HGET', SLOT .. request.owner, number) == request.id then
      redis.call('HDEL', SLOT .. request.owner, number)
    end
  end
  each_resource(request, function(resource)
    drop_mark(resource)
    if is_awaited(resource) then note_unsettled(resource, '-inf') end
  end)
end
