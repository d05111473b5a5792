package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"berth/internal/state"
)

// A record of an ID can be lost: a disk has changed both of its files, or a power cut came before they were written.
// What had the ID still bears it, and nobody knows what that is. The files of a container go with it, but a volume or a
// directory of the host would keep the ID, and could never get another.

// These are variables for tests, since the kernels of few machines have project quotas.
var (
	check     = Check
	projectOf = Project
	usageOf   = Read
	give      = mark
)

// lost tells whether the record of an ID could not be read, and nobody has chosen the ID since.
func (g *Grant) lost() bool { return g.Lost && len(g.Holders) == 0 }

// keepLost keeps the IDs of records that cannot be read as grants that nobody holds, until no file has them any more.
// So they are known to be Berth's own.
func (l *Ledger) keepLost(broken []state.Broken) {
	for _, b := range broken {
		id, err := strconv.ParseUint(b.ID, 10, 32)
		if err != nil || id < MinID || id > maxID || recordName(uint32(id)) != b.ID {
			l.log.Warn("forget a disk quota whose record cannot be read", "project", b.ID, "error", b.Err)
			if err := os.RemoveAll(l.records.Path(b.ID)); err != nil {
				l.log.Error("remove the record of a disk quota", "project", b.ID, "error", err)
			}
			continue
		}
		l.log.Warn("the record of a disk quota cannot be read, and its holders are forgotten", "project", b.ID,
			"error", b.Err)
		g := &Grant{ID: uint32(id), Lost: true}
		if err := l.records.SaveTwice(b.ID, g); err != nil {
			l.log.Error("write the record of a disk quota again", "project", b.ID, "error", err)
		}
		l.grants[g.ID] = g
	}
}

// takeOver lets a directory that has another ID than it is to have get that. It refuses an ID that is not one whose
// record is lost, with errdefs.ErrFailedPrecondition. In Berth's own root, an ID without a record is such a one too.
// Elsewhere it may be that of another program, which chooses from the same numbers.
func (l *Ledger) takeOver(dir string, has uint32) error {
	refused := fmt.Errorf("%s has the project ID %d already, which another program has given it: %w", dir, has,
		errdefs.ErrFailedPrecondition)
	if has < MinID || has > maxID {
		return refused
	}
	l.mu.Lock()
	g := l.grants[has]
	l.mu.Unlock()
	switch root := filepath.Dir(l.records.Dir); {
	case g != nil && g.lost():
	case g != nil:
		return refused
	case strings.HasPrefix(dir, root+"/"):
		if inherited, err := projectOf(root); err != nil || inherited == has {
			return errors.Join(refused, err) // somebody has given it to all of the root
		}
	default:
		return fmt.Errorf("%s has the project ID %d already, from another program or from a disk quota whose record is lost "+
			"(chattr -R -p 0 takes it away): %w", dir, has, errdefs.ErrFailedPrecondition)
	}
	l.log.Warn("a directory has the project ID of a disk quota whose record is lost, and gets another", "directory", dir,
		"project", has)
	return nil
}

// endLost ends the limit of an ID whose record is lost, and forgets the ID, if no file has it any more. dir is on the
// file system of what has had it.
func (l *Ledger) endLost(dir string, id uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := l.grants[id]
	if g == nil {
		g = &Grant{ID: id, Lost: true}
	}
	if !g.lost() {
		return nil // a client has chosen it meanwhile
	}
	return l.forgetLost(g, dir)
}

// forgetLost is endLost for a caller who holds l.mu.
func (l *Ledger) forgetLost(g *Grant, dir string) error {
	if check(dir) == nil {
		used, err := usageOf(dir, g.ID)
		if err != nil {
			return err
		}
		if used.Inodes > 0 || used.Bytes > 0 {
			return nil
		}
		if err := limit(dir, g.ID, 0); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(l.records.Path(recordName(g.ID))); err != nil {
		return err
	}
	delete(l.grants, g.ID)
	return nil
}

// markOver gives a directory the ID of a grant, which has another one already.
func (l *Ledger) markOver(ctx context.Context, dir string, id, has uint32) error {
	if err := l.takeOver(dir, has); err != nil {
		return err
	}
	if err := give(ctx, dir, id, 0); err != nil {
		return err
	}
	if err := l.endLost(dir, has); err != nil {
		l.log.Error("end a disk quota", "project", has, "error", err)
	}
	return nil
}
