/* The watch: one thread a process, from cuInit on. While no gate has work it wakes every ten seconds, to keep the beat. */
#ifndef PARTAGE_WATCH_H
#define PARTAGE_WATCH_H

void watch_wake(void);
void watch_stop(void);
void watch_forget(void);

#endif
