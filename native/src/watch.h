/* The watch: one thread a process, awake only while a gate has work. */
#ifndef PARTAGE_WATCH_H
#define PARTAGE_WATCH_H


void watch_wake(void);
void watch_stop(void);
void watch_forget(void);

#endif
