package table

import (
	"cmp"
	"strings"
	"testing"
)

func TestAListIsReducedAndSorted(t *testing.T) {
	list := List[row]{
		Columns: []Column[row]{
			{Title: "NAME", Value: func(r row) string { return r.Name }},
			{Title: "SIZE", Value: func(r row) string { return Bytes(uint64(r.Size)) },
				Order: func(a, b row) int { return cmp.Compare(a.Size, b.Size) }},
		},
		Name: func(r row) string { return r.Name },
		ID:   func(r row) string { return strings.Repeat("i", r.Size%5) },
	}
	for _, c := range []struct {
		view View
		want string
	}{
		{View{}, "NAME   SIZE\nb      2.0KiB\nc      903B\na      10B\n"},
		{View{NoHeaders: true}, "b   2.0KiB\nc   903B\na   10B\n"},
		{View{NoHeaders: true, SortBy: "name"}, "a   10B\nb   2.0KiB\nc   903B\n"},
		{View{NoHeaders: true, SortBy: "size"}, "a   10B\nc   903B\nb   2.0KiB\n"},
		{View{Names: true, SortBy: "Name"}, "a\nb\nc\n"},
		{View{Quiet: true}, "iii\n"}, // b and c have the same ID, a has none
	} {
		var b strings.Builder
		rows := []row{{"b", 2048}, {"c", 903}, {"a", 10}}
		if err := list.Print(&b, Table, c.view, rows); err != nil || b.String() != c.want {
			t.Errorf("%+v: got %q, want %q, %v", c.view, b.String(), c.want, err)
		}
	}
	if err := list.Check(View{SortBy: "colour"}); err == nil || !strings.Contains(err.Error(), "name, size") {
		t.Errorf("a column that is not there: %v", err)
	}
}
