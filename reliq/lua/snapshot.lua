-- snapshot: records the counts and the ledger of many queues, each once in an interval.
--
-- The history of a queue is a hash of blocks. Block n begins n times sixty intervals after the
-- epoch. It is a sequence of snapshots: the number of the interval in the block, the counts (see
-- below) with 7 bits in each byte, and the number of following intervals with equal counts. The
-- field "noted" has the interval of the last snapshot, the bytes of its counts, and its counters.
--
-- ARGV[1] interval (ms)
--
-- Counts of messages: ready, delayed, unacked, dead; and since the previous snapshot: published,
-- delivered, acked, redelivered, failed deliveries, dead-lettered, expired. A temporary queue
-- (auto_delete, x-expires) has no history.
--
-- Returns ms until the next interval begins
-- limits: HISTORY_BLOCKS
local interval = tonumber(ARGV[1])

-- clock: now
local current = math.floor(now / interval)
local block = math.floor(current / 60)

-- use: whole

-- Returns a number as bytes: 7 bits in each, lowest first; the eighth bit marks that more follow.
local function packed(number)
  local bytes = {}
  while number > 127 do
    bytes[#bytes + 1] = string.char(128 + number % 128)
    number = math.floor(number / 128)
  end
  bytes[#bytes + 1] = string.char(number)
  return table.concat(bytes)
end

for n = 0, #KEYS - 8, 8 do
  -- keys of each: ready, delayed, unacked_index, dead, stats, meta, history, guard
  local noted = redis.pcall('HGET', history, 'noted')
  noted = type(noted) == 'string' and noted or ''
  -- Usually another consumer has recorded this interval.
  if whole(string.match(noted, '^%d+')) ~= current then
    -- Returns the counts as bytes, and the present counters.
    local function counts(before)
      local sizes = {packed(redis.call('ZCARD', ready)), packed(redis.call('ZCARD', delayed)),
        packed(redis.call('ZCARD', unacked_index)), packed(redis.call('ZCARD', dead))}
      local ledger = redis.call('HMGET', stats, 'published', 'token', 'job_events', 'acked',
        'redelivered', 'lapsed', 'nacked', 'dead_lettered', 'expired')
      for i = 1, 9 do
        ledger[i] = whole(ledger[i]) or 0
      end
      local published, token, events, acked, redelivered, lapsed, nacked, died, expired =
        unpack(ledger)
      -- Job events use numbers from the sequence of lease tokens.
      local counters = {published, math.max(token - events, 0), acked, redelivered,
        lapsed + nacked, died, expired}
      local known = string.gmatch(before or '', '%d+')
      for i, counter in ipairs(counters) do
        sizes[#sizes + 1] = packed(math.max(counter - (whole(known()) or counter), 0))
        counters[i] = string.format('%.0f', counter)
      end
      return table.concat(sizes), table.concat(counters, ' ')
    end

    -- Removes blocks that are too old, and future blocks left by a clock that was set back.
    local function forget_old()
      for _, name in ipairs(redis.call('HKEYS', history)) do
        local number = name ~= 'noted' and (whole(name) or -1)
        if number and (number < block - HISTORY_BLOCKS or number > block) then
          redis.call('HDEL', history, name)
        end
      end
    end

    local function take_snapshot()
      local about = redis.call('HMGET', meta, 'exists', 'auto_delete', 'expires')
      if not about[1] or about[2] or about[3] then
        return
      end
      local last, size, before = string.match(noted, '^(%d+) (%d+) ([%d ]+)$')
      local counted, counters = counts(before)
      local records = redis.call('HGET', history, block) or ''
      local again = string.byte(records, -1) or 0
      if records == '' then
        forget_old()
      end
      if whole(last) == current - 1 and records ~= '' and again < 59
          and string.sub(records, -(whole(size) or 0) - 1, -2) == counted then
        records = string.sub(records, 1, -2) .. string.char(again + 1)
      else
        records = records .. string.char(current % 60) .. counted .. string.char(0)
      end
      redis.call('HSET', history, block, records,
        'noted', string.format('%.0f %d %s', current, #counted, counters))
    end

    -- A queue with a key of the wrong type does not affect the others.
    pcall(take_snapshot)
  end
end
return interval - now % interval
