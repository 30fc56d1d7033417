/* SPDX-License-Identifier: Apache-2.0 */
/* headers: mrc.h mrc_engine.h netlink_watch.h plane_socket.h */
/* sources: config.c encap.c srv6.c endpoint.c endpoint_events.c endpoint_probe.c
   endpoint_receive.c endpoint_transmit.c ev_profile.c icrc.c loss.c memory_table.c nscc.c path.c
   peer.c psn_window.c requestor.c requestor_transmit.c responder.c suspects.c timer_heap.c wire.c
   netlink_watch.c plane_socket.c engine.c engine_calls.c */
