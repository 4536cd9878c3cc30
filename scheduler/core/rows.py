"""Which row a running request has, and every running request's counts as columns."""

from __future__ import annotations

import numpy as np

from scheduler.core.request import NO_ROW, Request

NO_TOKEN = -1


class Rows:
    """The persistent batch. Every array is indexed by row.

    known     tokens whose value is known or is being sampled by a step in flight
    computed  tokens in the pool once every step sent has run
    accepted  tokens whose value is known: `tokens[row, :accepted]`
    written   tokens that answered steps, or others that share them, have put into the pool for
              good: no later step writes there. Only the prefix cache asks, and only with one
    limit     most tokens
    reserved  tokens that the row's table holds blocks for from its first step on; 0 if it
              grows as they are computed
    held      the request's output is complete and the row runs on: see Hold
    logprobs  how many log-probabilities each sampled token comes with; 0: none
    last_token_at  time.monotonic() of the last token accepted

    Always accepted <= known <= limit and computed < known for a row that may be
    planned: each step closes part of the gap known - computed, and a step that
    closes it samples one more token, in each of its repetitions. A row that is planned at its
    limit computes its last slot again, samples the same token again, and no count moves.
    """

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self.max_rows = max_rows
        self.request = np.full(max_rows, None, object)
        self.live = np.zeros(max_rows, bool)
        self.handle = np.zeros(max_rows, np.int64)
        self.order = np.zeros(max_rows, np.int64)
        self.prompt_len = np.zeros(max_rows, np.int64)
        self.known = np.zeros(max_rows, np.int64)
        self.computed = np.zeros(max_rows, np.int64)
        self.accepted = np.zeros(max_rows, np.int64)
        self.written = np.zeros(max_rows, np.int64)
        self.limit = np.zeros(max_rows, np.int64)
        self.reserved = np.zeros(max_rows, np.int64)
        self.held = np.zeros(max_rows, bool)
        # Rises when a row changes hands: a result belongs to the request that had
        # the row when the step was planned.
        self.generation = np.zeros(max_rows, np.int64)
        self.last_token_at = np.zeros(max_rows, np.float64)
        self.logprobs = np.zeros(max_rows, np.int64)
        self.num_with_logprobs = 0
        self.tokens = np.zeros((max_rows, max_tokens), np.int32)
        self.stop_ids = np.full((max_rows, 8), NO_TOKEN, np.int32)
        self._free = list(range(max_rows - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_live(self) -> int:
        return self.max_rows - len(self._free)

    @property
    def finishing(self) -> np.ndarray:
        """Rows whose certain last token (length) is in flight: bool [max_rows]."""
        return self.live & ~self.held & (self.known >= self.limit)

    @property
    def runnable(self) -> np.ndarray:
        """Rows that lack tokens which the next step may compute: bool [max_rows]."""
        return self.live & ~self.held & (self.known < self.limit)

    def take(self, request: Request) -> int:
        """Gives the request a row, with none of its tokens computed."""
        row = self._free.pop()
        request.row = row
        count = len(request.tokens)
        self.request[row] = request
        self.live[row] = True
        self.handle[row] = request.handle
        self.order[row] = request.order
        self.prompt_len[row] = request.prompt_len
        self.known[row] = self.accepted[row] = count
        self.computed[row] = self.written[row] = 0
        self.limit[row] = request.limit
        self.reserved[row] = 0
        self.last_token_at[row] = request.last_token_at
        self.tokens[row, :count] = request.tokens
        self._set_stop_ids(row, request.stop_ids)
        self.logprobs[row] = request.num_logprobs
        self.num_with_logprobs += request.num_logprobs > 0
        return row

    def hold(self, row: int) -> None:
        """Gives the request its tokens: later ones are nobody's."""
        if not self.held[row]:
            self._give_back_tokens(row)
            self.held[row] = True

    def drop(self, row: int) -> Request:
        """Takes the row from its request, which gets its tokens back."""
        if not self.held[row]:
            self._give_back_tokens(row)
        request: Request = self.request[row]
        request.row = NO_ROW
        self.request[row] = None
        self.live[row] = self.held[row] = False
        self.generation[row] += 1
        self.num_with_logprobs -= request.num_logprobs > 0
        self._free.append(row)
        return request

    def _give_back_tokens(self, row: int) -> None:
        request: Request = self.request[row]
        request.tokens = self.tokens[row, : self.accepted[row]].copy()
        request.last_token_at = float(self.last_token_at[row])

    def _set_stop_ids(self, row: int, ids: np.ndarray) -> None:
        if len(ids) > self.stop_ids.shape[1]:
            wider = np.full((self.max_rows, len(ids)), NO_TOKEN, np.int32)
            wider[:, : self.stop_ids.shape[1]] = self.stop_ids
            self.stop_ids = wider
        self.stop_ids[row] = NO_TOKEN
        self.stop_ids[row, : len(ids)] = ids
