"""The only package that uses private names of aiohttp and asyncio.

Before you raise a version, read this list, then run `tests/unit/web/test_internals.py` and
`test_internals_client.py`, which test all of it over real sockets. `tests/test_tidy.py` checks that no other
package uses private names. Each name is listed with its purpose and with what goes wrong if it changes.

aiohttp, a server's connection (`RequestHandler` and its base `BaseProtocol`), in `aiohttp_server.py`:

- `_waiter`, `_messages`, `_request_in_progress`, `_close`, `_force_close`: what its task is doing. Wrong:
  a direct answer overtakes another one, idle connections stay when the process drains.
- `_request_count`, `_upgraded`: what came out of the parser. Wrong: the start of a request is taken for a
  body.
- `_current_request`: the body that is being read. Wrong: its reader waits behind malformed bytes until
  its time is over.
- `_handle_request`: called for each request. Wrong: memory that was counted for an answer is not given
  back.
- `_task_handler`: the task itself. Wrong: noise in the log when a client is gone before it was looked at.
- `_process_keepalive`, `_keepalive_handle`, `_next_keepalive_close_time`, `_keepalive_timeout`: the end
  of who is idle. Wrong: idle connections stay, or answers that are still being taken are cut off.
- `_parser`, `_read_bufsize`, `_max_msg_queue_size`, and `HttpRequestParser`: a new parser behind a body
  that went past the old one. Wrong: the next request is swallowed by the body before it.
- `_reading_paused`, `_buffer_paused`, `_pause_transport_reading`, `_resume_transport_reading`: whether
  bytes come. Wrong: a body is read while the parser still has the start of it; what comes behind a direct
  answer is lost.
- `_drain_helper`: waits until the client takes more. Wrong: answers grow in memory.
- `_manager`: its server, which counts requests. Wrong: an unused number is wrong.
- `_loop`: the event loop.

aiohttp, requests and answers of a server, in `aiohttp_server.py`:

- `_message` and its `should_close` (`BaseRequest`): this answer is the last one. Wrong: what follows a
  request that ends nowhere is taken for a request.
- `_cache` (`BaseRequest`): holds the version of HTTP. Wrong: an answer in a version that the client does
  not know.
- `_match_info` (`Request`): the route. Wrong: metrics and logs do not name it.
- `_send_headers_immediately` (`StreamResponse`): the head waits for the body. Wrong: no error can be sent
  any more once a body was begun; `take_head` raises LibraryChanged.
- `_headers_buf`, `_headers_written` (`StreamWriter`): the head that waits. Wrong: the head of an answer
  is sent twice, in the middle of its body; `take_head` and `require_nothing_sent` raise LibraryChanged.

aiohttp, the client, in `aiohttp_client.py`:

- `_factory`, `_loop` (`BaseConnector`), and `ResponseHandler`: what a connection is. Wrong: one whose
  time ran out in the pool is handed out, the request fails, and aiohttp sends it again;
  `Connector.connect` raises LibraryChanged.
- `_consumed` (`Payload`), and `AsyncIterablePayload`: the body cannot be sent again. Wrong: a request
  whose connection broke is sent again with what is left of its body; `BodySentOnce` raises
  LibraryChanged.

asyncio, TLS (`sslproto.SSLProtocol` and its transport), in `tls.py`. They change with Python, not with
aiohttp; the tests in `tests/unit/web/internals` try them further. Wrong: handshakes fail,
bytes wait for ever, or memory grows.

- `_SSLProtocolTransport`, its `_closed` and `_ssl_protocol`: what the application writes to.
- `_sslobj`, `_incoming`, `_outgoing`, `_ssl_buffer`, `_ssl_buffer_view`: OpenSSL and its buffers, which
  are shared.
- `_state`, `_set_state`, `_eof_received`, `_transport`, `_loop`: how far a connection is, and what it
  stands on.
- `_app_protocol`, `_app_protocol_get_buffer`, `_app_protocol_buffer_updated`, `_app_transport`,
  `_get_app_transport`, `_call_eof_received`: the application.
- `_app_reading_paused`, `_app_writing_paused`, `_ssl_writing_paused`, `_resume_reading`,
  `_control_app_writing`, `_control_ssl_reading`, `_set_read_buffer_limits`, `_get_write_buffer_size`:
  flow control.
- `_write_backlog`, `_write_buffer_size`, `_write_appdata`, `_do_write`, `_process_outgoing`: what waits
  to be sent.
- `_do_read`, `_do_read__buffered`, `_do_read__copied`: what comes.
- `_on_handshake_complete`, `_wakeup_waiter`, `_handshake_start_time`, `_handshake_timeout_handle`: the
  start.
- `_start_shutdown`, `_do_flush`, `_do_shutdown`, `_on_shutdown_complete`, `_check_shutdown_timeout`,
  `_shutdown_timeout_handle`, `_ssl_shutdown_timeout`, `_fatal_error`: the end.
"""
